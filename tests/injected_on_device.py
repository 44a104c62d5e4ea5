"""Slowdowns put into healthy work on a GPU, and what the gate says of each: a table, as Markdown.

    python -m tests.injected_on_device [--repetitions 20] [--out FILE.json]

First the same healthy work several times over, held against its first measurement as a baseline and against its
floor: none may be red. Then slower work against the same baseline and floor.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pytest_amp.cases import Case, decoder
from pytest_amp.devices import Device, find_device
from pytest_amp.float32 import float32_precision
from pytest_amp.floors import SHARES
from pytest_amp.precision import BF16
from pytest_amp.speed import Arms, Conditions, Demand, Interval, Measured, Outcome, Plan, Rule, Step, arms_of, measure
from pytest_amp.speed.clocks import checked_clock
from pytest_amp.speed.replay import captured
from pytest_amp.speed.verdict import judge
from pytest_amp.speed.workloads import step_maker
from suites.speed.work import SIZE, resnet, trained

#: As the suite measures.
PLAN = Plan(budget=2.5)

Change = Callable[[nn.Module], object]
Wrap = Callable[[Step], Step]


@dataclass(frozen=True)
class Injected:
    """A slowdown: what it is, and how it is put into the model or around the step."""

    name: str
    model: Change = lambda _: None
    step: Wrap = lambda step: step


class Bench:
    """One piece of work on one device, measured as the gate measures it."""

    def __init__(self, device: Device, case: Case, kind: str) -> None:
        """In bf16, over TF32."""
        self.device, self.case, self.kind = device, case, kind
        self.clock = checked_clock(device)

    def measured(self, injected: Injected, demand: Demand, before: Interval | None) -> tuple[Measured, float]:
        """What the gate measures, and how long that takes."""
        began = time.perf_counter()
        conditions = Conditions(self.device, BF16, "gate", before=lambda _: before)
        floor, _ = conditions.least(demand)
        case = Case(self.case.name, lambda: _changed(self.case.build(), injected), self.case.batch, self.case.loss)
        make = step_maker(case, self.device, seed=0, dtype=BF16.dtype)

        def arms() -> Arms:
            made = arms_of(injected.step(make()), self.device, BF16.dtype)
            if self.kind != "device":
                return made
            return Arms(*(captured(call, self.device, "it") for call in (made.reference, made.candidate)))

        with float32_precision("tf32"):
            found = measure(
                arms,
                clock=self.clock,
                rule=Rule(floor, margin=demand.margin),
                plan=demand.plan,
                environment=lambda: conditions.doubts(self.device),
            )
        return found, time.perf_counter() - began


def _changed(model: nn.Module, injected: Injected) -> nn.Module:
    injected.model(model)
    return model


def busier(share: float, seconds: float, device: Device) -> Wrap:
    """Under autocast the step has work of its own at the end, which takes ``share`` of ``seconds``."""
    rate = _bytes_a_second(device)
    elements = max(1, int(share * seconds * rate / 8))
    buffer = torch.ones(elements, device=device.torch_device)

    def wrap(step: Step) -> Step:
        def slower(autocast: Callable[[], contextlib.AbstractContextManager[object]]) -> object:
            result = step(autocast)
            with autocast():
                low = torch.is_autocast_enabled(device.type)
            if low:
                buffer.mul_(1.0)
            return result

        return slower

    return wrap


def _bytes_a_second(device: Device) -> float:
    """What an operation that reads and writes each element moves."""
    buffer = torch.ones(1 << 26, device=device.torch_device)
    clock = checked_clock(device)
    clock.time(lambda: buffer.mul_(1.0), repeats=10, timings=3)
    return 8 * buffer.numel() / min(clock.time(lambda: buffer.mul_(1.0), repeats=10, timings=5))


def without_autocast(layer: str) -> Change:
    """One layer computes outside of the region."""

    def change(model: nn.Module) -> None:
        module = model.get_submodule(layer)
        inner = module.forward

        def forward(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast(x.device.type, enabled=False):
                out: torch.Tensor = inner(x.float())
            return out

        module.forward = forward

    return change


def widened(layer: str) -> Change:
    """What comes out of a layer is made float32, as a stray .float() does."""

    def change(model: nn.Module) -> None:
        model.get_submodule(layer).register_forward_hook(lambda _module, _args, out: out.float())

    return change


def channels_first(model: nn.Module) -> None:
    """The model's weights and its input are no longer channels last."""
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    model.register_forward_pre_hook(lambda _module, args: (args[0].contiguous(),))


def repeated(bench: Bench, demand: Demand, count: int) -> Iterator[dict[str, Any]]:
    """The healthy work again and again; the first is the baseline of the others."""
    before, healthy = None, Injected("healthy")
    for number in range(count + 1):
        found, took = bench.measured(healthy, demand, before)
        yield {"number": number, **_row(found, took, before, bench.kind)}
        if before is None:
            interval = found.verdict.interval
            before, demand = interval, replace(demand, floor=SHARES[bench.kind] * interval.median)


def _row(found: Measured, took: float, before: Interval | None, kind: str) -> dict[str, Any]:
    interval = found.verdict.interval
    against_floor = None
    if before is not None:
        floor = Rule(SHARES[kind] * before.median, margin=found.verdict.rule.margin)
        against_floor = judge(interval, floor).value
    return {
        "ratio": interval.median,
        "interval": [interval.low, interval.high],
        "quads": interval.quads,
        "verdict": found.verdict.outcome.value,
        "reasons": list(found.verdict.reasons),
        "loss": None if before is None else 1 - interval.median / before.median,
        "floor": against_floor,
        "amp": found.candidate_median,
        "seconds": took,
    }


def main() -> int:
    """Measure, print the tables, and write every number; 1 where healthy work was red."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = find_device(options.device)
    rows: list[dict[str, Any]] = []

    def note(row: dict[str, Any]) -> None:
        rows.append(row)
        if options.out:
            options.out.write_text(json.dumps({"device": device.describe(), "rows": rows}, indent=1), encoding="utf-8")
        shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()}
        sys.stdout.write(f"{shown}\n")
        sys.stdout.flush()

    for kind in ("device", "step"):
        bench = Bench(device, decoder(SIZE, batch=8, context=1024), kind)
        demand = Demand("decoder", 0.0, "tf32", kind, plan=PLAN)
        healthy = []
        for row in repeated(bench, demand, options.repetitions):
            note({"case": "decoder", "kind": kind, "injected": "healthy", **row})
            healthy.append(row)
        first = healthy[0]
        before = Interval(first["interval"][0], first["ratio"], first["interval"][1], first["quads"])
        took = first["amp"]
        for injected in (
            *(Injected(f"{s:.0%} longer", step=busier(s, took, device)) for s in (0.02, 0.05, 0.10, 0.20)),
            Injected("autocast off in blocks.0.up", model=without_autocast("blocks.0.up")),
            Injected(".float() after blocks.0.up", model=widened("blocks.0.up")),
        ):
            found, seconds = bench.measured(injected, demand, before)
            note({"case": "decoder", "kind": kind, "injected": injected.name, **_row(found, seconds, before, kind)})
        bench = Bench(device, trained("resnet", resnet, 32, 3, 112, 112, last=True)(None), kind)
        demand = Demand("resnet", 0.0, "tf32", kind, plan=PLAN)
        found, seconds = bench.measured(Injected("healthy"), demand, None)
        note({"case": "resnet", "kind": kind, "injected": "healthy", **_row(found, seconds, None, kind)})
        lost, seconds = bench.measured(Injected("channels_last", model=channels_first), demand, found.verdict.interval)
        row = _row(lost, seconds, found.verdict.interval, kind)
        note({"case": "resnet", "kind": kind, "injected": "lost channels_last", **row})
        ratios = [row["ratio"] for row in healthy]
        spread = statistics.stdev(ratios) / statistics.mean(ratios) if len(ratios) > 1 else 0.0
        sys.stdout.write(f"spread of {len(ratios)} healthy measurements, {kind}: {spread:.3%}\n")
    red = [row for row in rows if row["injected"] == "healthy" and Outcome.FAIL.value in (row["verdict"], row["floor"])]
    sys.stdout.write(table(rows))
    return 1 if red else 0


def table(rows: list[dict[str, Any]]) -> str:
    """What was injected, measured and said."""
    lines = [
        "| injected | in | speedup | loss | against the baseline | against the floor | seconds |",
        "|" + "---|" * 7,
    ]
    for row in rows:
        if row["injected"] != "healthy":
            cells = (
                f"{row['injected']} ({row['case']})",
                row["kind"],
                f"{row['ratio']:.3f}",
                f"{row['loss']:.1%}",
                row["verdict"],
                row["floor"],
                f"{row['seconds']:.1f}",
            )
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
