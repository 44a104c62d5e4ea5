"""Times of both arms against a baseline: on the same card, on another one, and without a yardstick; simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import pytest

from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import BF16
from pytest_amp.record import Baseline, Better, Kind, Observation, Record, Value, Verdict, make_key
from pytest_amp.record.times import CONDITIONS, NOISE, Conditions, conditions_key
from pytest_amp.speed import Demand, Interval, Plan, SpeedConditions, TimeBefore, check_speedup
from tests.observing import Noted
from tests.speed.simulated import SimulatedClock, step_taking
from tests.speed.test_gate import _no_benchmark

__all__ = ["_no_benchmark"]

#: Seconds of the yardsticks of a card.
YARDSTICK = {"tensor-cores": 1e-3, "copy": 7e-5, "launch": 1.3e-6, "host-launch": 4e-6}
CARD = "GPU-1"
#: Relative noise of a block, and from process to process, of replayed graphs (docs/explanation/speed.md).
BLOCK, PROCESS = 0.0005, 0.0012


def measured_on(gpu: str = CARD, host: str = "a CPU", width: float = 0.0002, **factors: float) -> Conditions:
    """Return conditions whose yardsticks take ``factors`` times as long, by name with underscores."""
    seconds = {name: usual * factors.get(name.replace("-", "_"), 1.0) for name, usual in YARDSTICK.items()}
    return Conditions(gpu, host, {name: (s * (1 - width), s, s * (1 + width)) for name, s in seconds.items()})


@dataclass
class Bench:
    """Simulated work, recorded once and compared as often as requested."""

    request: pytest.FixtureRequest
    kind: str = "device"
    before: Record = field(default_factory=lambda: Record((), {}))
    notes: list[str] = field(default_factory=list)

    def check(
        self,
        reference: float | Iterable[float] = 3.0,
        candidate: float | Iterable[float] = 2.0,
        *,
        place: Conditions | None = None,
        later: Conditions | None = None,
        mode: str = "gate",
        kernels: dict[str, float] | None = None,
        recorded: bool = False,
    ) -> tuple[Observation, ...]:
        """Run one check, with conditions that become ``later`` once they are measured again."""
        where = place or measured_on()
        noted = Noted()
        baseline = Baseline(self.before, {})

        def compare_time(name: str, interval: Interval, margin: float, beside: Value) -> TimeBefore | None:
            key = make_key("speed", "cuda", "bf16", name)
            before = baseline.before(key)
            if before is None:
                return None
            now = seconds(key, interval, margin)
            run = {conditions_key(key): Observation(conditions_key(key), Kind.MEASURE, beside)}
            old = baseline.before(conditions_key(key))
            recorded_kernels = old.value.get("kernels") if old is not None and isinstance(old.value, dict) else None
            return TimeBefore(baseline.compare(now, run), before, baseline.terms(key, run), recorded_kernels, "a cause")

        conditions = SpeedConditions(
            find_device("cpu"),
            BF16,
            mode,
            observe=noted.observe,
            compare_time=compare_time,
            measured_on=lambda *_, again=False: ((later or where) if again else where, ""),
            kernels=lambda *_: kernels or {},
            recorded=recorded,
            note=self.notes.append,
        )
        demand = Demand("sums", 0.0, "tf32", kind="step", plan=Plan(warm_up=0, shortest=0))
        demand = OfKind("sums", 0.0, "tf32", kind=self.kind, plan=demand.plan)
        try:
            check_speedup(
                lambda: step_taking(reference, candidate), demand, conditions, self.request, clock=SimulatedClock()
            )
        finally:
            self.observed = tuple(observation_of(name, value, noted.facts[name]) for name, value in noted.items())
        return self.observed

    def record(self, *args: float | Iterable[float], **keywords: object) -> None:
        """Record a healthy check as the baseline."""
        self.before = Record(self.check(*args, recorded=True, **keywords), {})  # type: ignore[arg-type]

    def red(self, *args: float | Iterable[float], **keywords: object) -> list[str]:
        """Return the lines of the failure of a check, after its name."""
        with pytest.raises(AmpFailure) as failure:
            self.check(*args, **keywords)  # type: ignore[arg-type]
        return str(failure.value).removeprefix("AmpFailure: ").splitlines()


class OfKind(Demand):
    """Demand of a device's own time, whose arms a CPU does not capture."""


def seconds(key: str, interval: Interval, margin: float | None) -> Observation:
    ends = (interval.low, interval.high)
    return Observation(key, Kind.SECONDS, interval.median, "s", interval=ends, better=Better.LOWER, margin=margin)


def observation_of(name: str, value: Value, facts: dict[str, object]) -> Observation:
    key = make_key("speed", "cuda", "bf16", name)
    return Observation.from_json({"key": key, "value": value, **{k: as_json(v) for k, v in facts.items()}})


def as_json(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


@pytest.fixture
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Return a bench for device time whose calls are not captured."""
    monkeypatch.setattr("pytest_amp.speed.gate.captured", lambda call, *_: call)
    return Bench(request)


def test_same_times_pass(bench: Bench) -> None:
    bench.record()
    times = {o.name: o for o in bench.check() if o.kind is Kind.SECONDS}
    assert {name: (o.value, o.better) for name, o in times.items()} == {
        "sums/over-tf32/device/float32-time": (3.0, Better.LOWER),
        "sums/over-tf32/device/autocast-time": (2.0, Better.LOWER),
    }
    assert bench.notes == []


@pytest.mark.parametrize(
    ("reference", "candidate", "says"),
    [
        (3.0, 2.04, "bf16 takes 2 % longer, TF32 as long as before"),
        (3.06, 2.0, "bf16 as long as before, TF32 takes 2 % longer"),
        (3.06, 2.04, "bf16 takes 2 % longer, TF32 takes 2 % longer"),
        (3.0, 2.172, "bf16 takes 8.6 % longer, TF32 as long as before"),
        (2.91, 2.04, "bf16 takes 2 % longer, TF32 takes 3 % less time"),
    ],
)
def test_two_percent_longer_is_red_in_either_arm(bench: Bench, reference: float, candidate: float, says: str) -> None:
    bench.record()
    lines = bench.red(reference, candidate)
    assert lines[0] == f"sums takes longer than in the baseline, in device time: {says}"
