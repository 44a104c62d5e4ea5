"""Slowdowns put into healthy work on a GPU, and what the gate says of each: a table, as Markdown.

    python -m tools.injected_on_device [--repetitions 20] [--kinds KIND ...] [--only NAME ...] [--dtype D] [--out FILE]

Each slowdown is compared with the first measurement of the healthy work as a baseline, and with the floor derived from
it; the tolerated loss depends on the calibration of this card (--floors, or the data of the package). Then the healthy
work is measured repeatedly: no measurement may be red.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pytest_amp.cases import Case
from pytest_amp.devices import Device, find_device
from pytest_amp.floors import SHARES, Row, read
from pytest_amp.precision import LOW, Precision
from pytest_amp.precision.float32 import float32_precision
from pytest_amp.speed import (
    Arms,
    Demand,
    Interval,
    Measured,
    Outcome,
    Plan,
    Rule,
    SpeedConditions,
    TimedStep,
    arms_of,
    measure,
)
from pytest_amp.speed.clocks import checked_clock
from pytest_amp.speed.demand import KINDS
from pytest_amp.speed.replay import captured
from pytest_amp.speed.verdict import PRECISE, judge
from pytest_amp.speed.workloads import step_maker
from suites.speed.work import SECONDS, decoder_for, resnet, trained

#: Maximum number of measurements of healthy work until one is conclusive: it is the reference of the slowdowns.
TRIES = 3
#: Relative slowdowns of a step. The loss that a floor tolerates (SHARES) is between the last two of each kind.
LONGER = {"device": (0.02, 0.05, 0.10, 0.20), "step": (0.05, 0.08, 0.10, 0.12, 0.20, 0.30)}
#: Name of the measured decoder in the suite, by kind of time.
DECODERS = {"device": "decoder", "step": "decoder-step"}

Change = Callable[[nn.Module], object]
Wrap = Callable[[TimedStep], TimedStep]


@dataclass(frozen=True)
class Injected:
    """A slowdown: what it is, and how it is put into the model or around the step."""

    name: str
    model: Change = lambda _: None
    step: Wrap = lambda step: step


HEALTHY = Injected("healthy")


class Bench:
    """One piece of work on one device, measured as the gate measures it."""

    def __init__(self, device: Device, case: Case, kind: str, floors: tuple[Row, ...], low: Precision) -> None:
        """In ``low``, over TF32; ``floors`` are calibrations in addition to those of the package."""
        self.device, self.case, self.kind, self.floors, self.low = device, case, kind, floors, low
        self.clock = checked_clock(device)

    def measured(self, injected: Injected, demand: Demand, before: Interval | None) -> tuple[Measured, float]:
        """What the gate measures, and how long that takes."""
        began = time.perf_counter()
        conditions = SpeedConditions(self.device, self.low, "gate", before=lambda _: before, floors=self.floors)
        floor, _ = conditions.least(demand)
        case = Case(self.case.name, lambda: _changed(self.case.build(), injected), self.case.batch, self.case.loss)
        make = step_maker(case, self.device, seed=0, dtype=self.low.dtype)

        def arms() -> Arms:
            result = arms_of(injected.step(make()), self.device, self.low.dtype)
            if self.kind != "device":
                return result
            return Arms(*(captured(call, self.device, "it") for call in (result.reference, result.candidate)))

        with float32_precision("tf32"):
            result = measure(
                arms,
                clock=self.clock,
                rule=Rule(floor, margin=demand.margin, precision=PRECISE),
                plan=demand.plan,
                environment=lambda: conditions.doubts(self.device),
            )
        return result, time.perf_counter() - began


def _changed(model: nn.Module, injected: Injected) -> nn.Module:
    injected.model(model)
    return model


def busier(share: float, seconds: float, device: Device) -> Wrap:
    """Under autocast the step has work of its own at the end, which takes ``share`` of ``seconds``."""
    rate = _bytes_a_second(device)
    elements = max(1, int(share * seconds * rate / 8))

    def wrap(step: TimedStep) -> TimedStep:
        buffer = torch.ones(elements, device=device.torch_device)  # gigabytes, so only while it is timed

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


class WithoutAutocast(nn.Module):
    """A layer that computes outside of the region."""

    def __init__(self, inner: nn.Module) -> None:
        """Around ``inner``."""
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As ``inner``, in float32."""
        with torch.autocast(x.device.type, enabled=False):
            out: torch.Tensor = self.inner(x.float())
        return out


def without_autocast(layer: str) -> Change:
    """One layer computes outside of the region."""

    def change(model: nn.Module) -> None:
        parent, _, name = layer.rpartition(".")
        setattr(model.get_submodule(parent), name, WithoutAutocast(model.get_submodule(layer)))

    return change


def widened(layer: str) -> Change:
    """What comes out of a layer is made float32, as a stray .float() does."""

    def change(model: nn.Module) -> None:
        model.get_submodule(layer).register_forward_hook(lambda _module, _args, out: out.float())

    return change


def channels_first(*, under_autocast: bool) -> Change:
    """The model's weights and its input are no longer channels last: under autocast only, or in float32, too.

    A convolution is computed so where neither its weight nor its input is channels last.
    """

    def lost(_: nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        low = torch.is_autocast_enabled(args[0].device.type)
        return (args[0].contiguous(),) if low or not under_autocast else args

    def change(model: nn.Module) -> None:
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        model.register_forward_pre_hook(lost)

    return change


def _row(result: Measured, took: float, before: Interval | None, kind: str) -> dict[str, Any]:
    interval = result.verdict.interval
    against_floor = None
    if before is not None:
        floor = Rule(SHARES[kind] * before.median, margin=result.verdict.rule.margin)
        against_floor = judge(interval, floor).value
    return {
        "ratio": interval.median,
        "interval": [interval.low, interval.high],
        "quads": interval.quads,
        "verdict": result.verdict.outcome.value,
        "reasons": list(result.verdict.reasons),
        "loss": None if before is None else 1 - interval.median / before.median,
        "floor": against_floor,
        "amp": result.candidate_median,
        "seconds": took,
    }


class Notes:
    """Every number, printed and written at once: a run that is cut short has left what it measured."""

    def __init__(self, device: Device, out: Path | None) -> None:
        """To ``out``, if there is one."""
        self.rows: list[dict[str, Any]] = []
        self._device, self._out = device.describe(), out

    def add(self, case: str, kind: str, injected: str, row: dict[str, Any]) -> None:
        """One measurement."""
        self.rows.append({"case": case, "kind": kind, "injected": injected, **row})
        if self._out:
            text = json.dumps({"device": self._device, "rows": self.rows}, indent=1)
            self._out.write_text(text, encoding="utf-8")
        shown = f"{row['ratio']:.4f} {row['verdict']} {row['seconds']:.1f} s"
        sys.stdout.write(f"{case}, {kind}, {injected}: {shown}\n")
        sys.stdout.flush()


@dataclass(frozen=True)
class HealthyWork:
    """Healthy work with its references: its first measurement, and a floor derived from it."""

    bench: Bench
    demand: Demand
    before: Interval
    took: float

    def note(self, injected: Injected, notes: Notes) -> None:
        """Measure again, with ``injected``."""
        result, seconds = self.bench.measured(injected, self.demand, self.before)
        kind = self.bench.kind
        notes.add(self.demand.name, kind, injected.name, _row(result, seconds, self.before, kind))


def first_measured(bench: Bench, name: str, notes: Notes) -> HealthyWork:
    """Measure healthy work for the first time."""
    kind = bench.kind
    demand = Demand(name, 0.0, "tf32", kind, plan=Plan(budget=SECONDS[kind], warm_up=0.1))
    for _ in range(TRIES):
        result, seconds = bench.measured(HEALTHY, demand, None)
        notes.add(name, kind, "healthy", _row(result, seconds, None, kind))
        if result.verdict.outcome is not Outcome.INCONCLUSIVE:
            break
    interval = result.verdict.interval
    floored = replace(demand, floor=SHARES[kind] * interval.median)
    return HealthyWork(bench, floored, interval, result.candidate_median)


def slowdowns(work: HealthyWork, device: Device) -> tuple[Injected, ...]:
    """Those of the decoder."""
    return (
        *(Injected(f"{s:.0%} longer", step=busier(s, work.took, device)) for s in LONGER[work.bench.kind]),
        Injected("autocast off in blocks.0.up", model=without_autocast("blocks.0.up")),
        Injected(".float() after blocks.0.up", model=widened("blocks.0.up")),
    )


#: Those of convolutions.
LAYOUTS = (
    Injected("channels_last lost under autocast", model=channels_first(under_autocast=True)),
    Injected("channels_last lost in both arms", model=channels_first(under_autocast=False)),
)


def main() -> int:
    """Measure, print the tables, and write every number; 1 where healthy work was red."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--only", default=[""], nargs="*", help="slowdowns with one of these in their name")
    parser.add_argument("--kinds", default=[*KINDS], nargs="*", choices=KINDS)
    parser.add_argument("--floors", type=Path, help="what pytest-amp calibrate wrote")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bf16", choices=[*LOW])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device, low = find_device(options.device), LOW[options.dtype]
    notes = Notes(device, options.out)
    floors = read(options.floors) if options.floors else ()
    decoders = []
    for kind in options.kinds:
        work = first_measured(Bench(device, decoder_for(kind)(None), kind, floors, low), DECODERS[kind], notes)
        decoders.append(work)
        for injected in _chosen(slowdowns(work, device), options.only):
            work.note(injected, notes)
    layouts = _chosen(LAYOUTS, options.only)
    if layouts and "device" in options.kinds:
        images = trained("resnet", resnet, 32, 3, 112, 112, last=True)(None)
        work = first_measured(Bench(device, images, "device", floors, low), "resnet", notes)
        for injected in layouts:
            work.note(injected, notes)
    sys.stdout.write(table(notes.rows))
    for _ in range(options.repetitions):
        for work in decoders:
            work.note(HEALTHY, notes)
    healthy = [row for row in notes.rows if row["injected"] == "healthy"]
    for kind in options.kinds:
        ratios = [row["ratio"] for row in healthy if (row["case"], row["kind"]) == (DECODERS[kind], kind)]
        spread = statistics.stdev(ratios) / statistics.mean(ratios) if len(ratios) > 1 else 0.0
        sys.stdout.write(f"spread of {len(ratios)} healthy measurements, {kind}: {spread:.3%}\n")
    return 1 if any(Outcome.FAIL.value in (row["verdict"], row["floor"]) for row in healthy) else 0


def _chosen(some: tuple[Injected, ...], names: list[str]) -> list[Injected]:
    return [injected for injected in some if any(name in injected.name for name in names)]


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
