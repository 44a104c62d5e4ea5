"""What docs/explanation/folklore.md says of speed and memory, measured on a device: tables, as Markdown.

    python -m tools.folklore_on_device [--device cuda] [--parts steps,memory,warm-ups] [--out FILE.json]

Whole training steps with AdamW, from small models to large ones, in IEEE float32, TF32 and bf16: how long a loop waits
for them, how long the device takes for them, and the most memory that they hold. Then the first bf16 steps of fresh
processes, after a warm-up in bf16, in float32, or none.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pytest_amp.cases import Case, DecoderSize, decoder, mlp
from pytest_amp.devices import Device, DeviceKind, find_device
from pytest_amp.memory.peaks import Allocator
from pytest_amp.precision import BF16
from pytest_amp.precision.float32 import KINDS, Float32Kind, float32_precision
from pytest_amp.speed import NO_FLOOR, Arms, Measured, Plan, Rule, arms_of, measure, step_maker
from pytest_amp.speed.clocks import checked_clock
from pytest_amp.speed.replay import can_replay, captured

#: Short: what is claimed here are factors, not percents.
PLAN = Plan(budget=0.5, warm_up=0.1)
Row = dict[str, Any]


@dataclass(frozen=True)
class Sized:
    """A model by its width, and what a step of it is given."""

    name: str
    case: Case


def _decoder(layers: int, width: int, *, batch: int, context: int) -> Sized:
    size = DecoderSize(layers, width, max(width // 64, 1), vocabulary=10_000)
    name = f"decoder, {layers} layers of {width}, {batch} rows of {context} tokens"
    return Sized(name, decoder(size, batch=batch, context=context))


def _mlp(width: int, *, batch: int) -> Sized:
    return Sized(f"mlp, width {width}, batch {batch}", mlp(inputs=width, width=width, batch=batch))


WORK = {
    "accelerator": (
        _mlp(256, batch=32),
        _mlp(8192, batch=64),
        _mlp(8192, batch=8192),
        _decoder(2, 128, batch=4, context=64),
        _decoder(6, 512, batch=4, context=256),
        _decoder(12, 768, batch=4, context=1024),
        _decoder(24, 1024, batch=8, context=1024),
    ),
    "cpu": (_mlp(256, batch=32), _decoder(2, 128, batch=4, context=64)),
}
PARTS = ("steps", "memory", "warm-ups")
WARM_UPS = ("none", "float32", "bf16")


def arms(work: Sized, device: Device, *, replayed: bool = False) -> Callable[[], Arms]:
    """A whole step in float32, and the same under autocast; ``replayed`` from a graph, so that the host has no part."""
    graphs = can_replay(device)

    def optimizer(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-5, fused=True, capturable=graphs)

    make = step_maker(work.case, device, seed=0, dtype=BF16.dtype, optimizer=optimizer)

    def both() -> Arms:
        result = arms_of(make(), device, BF16.dtype)
        if not replayed:
            return result
        return Arms(captured(result.reference, device, work.name), captured(result.candidate, device, work.name))

    return both


def timed(work: Sized, device: Device, kind: Float32Kind, *, replayed: bool = False) -> Measured:
    """As the gate times it."""
    with float32_precision(kind):
        make = arms(work, device, replayed=replayed)
        return measure(make, clock=checked_clock(device), rule=Rule(NO_FLOOR), plan=PLAN)


def steps(work: Sized, device: Device) -> Row:
    """Milliseconds and ratios of steps."""
    row: Row = {"work": work.name}
    kinds = KINDS if device.type == "cuda" else KINDS[:1]
    result = {f"{kind}": timed(work, device, kind) for kind in kinds}
    if can_replay(device):
        result |= {f"{kind}, replayed": timed(work, device, kind, replayed=True) for kind in kinds}
    for name, times in result.items():
        interval = times.verdict.interval
        row[name] = {
            "float32, ms": times.reference_median * 1e3,
            "bf16, ms": times.candidate_median * 1e3,
            "speedup": interval.median,
            "interval": [interval.low, interval.high],
            "doubts": list(times.doubts),
        }
    return row


def memory(work: Sized, device: Device) -> Row:
    """The most bytes that were allocated during one step: weights, gradients, the optimizer's state and activations."""
    allocator = Allocator(device)
    peaks = {}
    for name in ("reference", "candidate"):
        gc.collect()
        before = allocator.allocated
        call = getattr(arms(work, device)(), name)
        call()  # makes the optimizer's state
        allocator.empty()
        call()
        peaks[name] = allocator.peaks[0] - before
        del call
    fp32, bf16 = peaks["reference"], peaks["candidate"]
    return {"work": work.name, "float32": fp32, "bf16": bf16, "ratio": bf16 / fp32}


def first_steps(warm_up: str, device_name: str) -> Row:
    """In this process, which has computed nothing yet: milliseconds of bf16 steps, as the host waits for them."""
    device = find_device(device_name)
    size = DecoderSize(layers=4, width=512 if device.kind is DeviceKind.ACCELERATOR else 128)
    work = Sized("", decoder(size, batch=4, context=128))
    both = arms(work, device)()
    for _ in range(5 if warm_up != "none" else 0):
        (both.candidate if warm_up == "bf16" else both.reference)()
    device.synchronize()
    times = []
    for _ in range(20):
        began = time.perf_counter()
        both.candidate()
        device.synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    median = statistics.median(times[10:])
    return {"warm-up": warm_up, "first": times[0], "second": times[1], "third": times[2], "median": median}


def fresh_processes(device_name: str, times: int) -> Iterator[Row]:
    """Each a fork of a process that has imported torch and no more, in turn."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    for _ in range(times):
        for warm_up in WARM_UPS:
            with context.Pool(1) as pool:
                yield pool.apply(first_steps, (warm_up, device_name))


def tables(result: dict[str, list[Row]]) -> str:
    """All, as Markdown."""
    heads = ("step", "", "IEEE, ms", "TF32", "bf16", "bf16 over IEEE", "over TF32", "TF32 over IEEE")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for row in result["steps"]:
        for how, suffix in (("a loop", ""), ("the device", ", replayed")):
            ieee, tf32 = row.get(f"ieee{suffix}"), row.get(f"tf32{suffix}")
            if ieee is None:
                continue
            last = tf32 or ieee
            numbers = [ieee["float32, ms"], tf32 and tf32["float32, ms"], last["bf16, ms"], ieee["speedup"]]
            numbers += [tf32 and tf32["speedup"], tf32 and ieee["float32, ms"] / tf32["float32, ms"]]
            lines.append(f"| {row['work']} | {how} | {_cells(numbers)} |")
    lines += ["", "| step | GB in float32 | in bf16 | bf16 over float32 |", "|" + "---|" * 4]
    for row in result["memory"]:
        lines.append(f"| {row['work']} | {_cells([row['float32'] / 1e9, row['bf16'] / 1e9, row['ratio']])} |")
    lines += ["", "| warm-up | first step over the median | second | third | median, ms |", "|" + "---|" * 5]
    for row in result["warm-ups"]:
        ratios = [row[name] / row["median"] for name in ("first", "second", "third")]
        lines.append(f"| {row['warm-up']} | {_cells([*ratios, row['median']])} |")
    return "\n".join([*lines, ""])


def _cells(numbers: list[float | None]) -> str:
    return " | ".join("" if number is None else f"{number:.2f}" for number in numbers)


def measured(part: str, device: Device, processes: int) -> Iterator[Row]:
    """The rows of one part, each as it is known."""
    if part == "warm-ups":
        yield from fresh_processes(device.name, processes)
        return
    for work in WORK["accelerator" if device.kind is DeviceKind.ACCELERATOR else "cpu"]:
        if part == "steps":
            yield steps(work, device)
        elif Allocator(device).counts:
            yield memory(work, device)


def main() -> int:
    """Measure, write every number at once, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", default=",".join(PARTS), help="default: %(default)s")
    parser.add_argument("--processes", type=int, default=3, help="for each warm-up (default: 3)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = find_device(options.device)
    result: dict[str, list[Row]] = {part: [] for part in PARTS}
    for part in options.parts.split(","):
        for row in measured(part, device, options.processes):
            result[part].append(row)
            if options.out:
                known = {"device": device.describe(), "torch": torch.__version__, **result}
                options.out.write_text(json.dumps(known, indent=1), encoding="utf-8")
    sys.stdout.write(tables(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
