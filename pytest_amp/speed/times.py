"""Comparison of both arms' times with a baseline, in words, and the kernels that took the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest_amp.devices import Device, DeviceKind
from pytest_amp.record import Observation, Value, Verdict
from pytest_amp.record.times import TIMES, Terms
from pytest_amp.speed.measure import Measured
from pytest_amp.speed.verdict import Interval
from pytest_amp.torch_private import PrivateApiGone, kernel_times

#: Kernels of an arm that are recorded, and the longest name: templates fill lines.
KERNELS, LONGEST = 3, 72


@dataclass(frozen=True)
class TimeBefore:
    """Comparison of a time with a baseline's.

    ``compared`` is this run's time with its verdict, ``before`` the earlier one, ``terms`` those of the comparison.
    ``kernels`` are the recorded kernels of the baseline, by arm, and ``cause`` says how the two runs differ.
    """

    compared: Observation
    before: Observation
    terms: Terms
    kernels: Value = None
    cause: str = ""


#: Function that compares a time with the baseline, by its name, interval (seconds), margin and conditions; None if no
#: baseline has it.
CompareTime = Callable[[str, Interval, float, Value], TimeBefore | None]


@dataclass(frozen=True)
class ArmTime:
    """Time of one arm, ``label`` in messages, and its comparison with a baseline, if there is one."""

    label: str
    name: str
    interval: Interval
    compared: TimeBefore | None

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of the comparison; None if there is none."""
        if self.compared is None or self.compared.terms.absent:
            return None
        return self.compared.compared.verdict

    @property
    def is_slower(self) -> bool:
        """True if the arm takes longer than in the baseline."""
        return self.verdict is Verdict.REGRESSED

    def __str__(self) -> str:
        """Return the comparison in words: ``bf16 takes 8.6 % longer``."""
        if self.verdict is Verdict.INCONCLUSIVE:
            return f"{self.label} undecided ({self._change})"
        if self.verdict in (Verdict.REGRESSED, Verdict.IMPROVED):
            return f"{self.label} takes {self._change}"
        return f"{self.label} as long as before"

    @property
    def _change(self) -> str:
        assert self.compared is not None
        low, high = self.compared.terms.factors or (1.0, 1.0)
        old = self.compared.before.value
        assert isinstance(old, (int, float))
        change = self.interval.median / (old * (low * high) ** 0.5) - 1
        return f"{100 * abs(change):.2g} % {'longer' if change > 0 else 'less time'}"


def times_of(
    measured: Measured, labels: tuple[str, str], compare: Callable[[str, Interval], TimeBefore | None]
) -> tuple[ArmTime, ArmTime]:
    """Return the times of both arms, float32's first, each compared by ``compare`` (its name, its interval)."""
    reference, candidate = (
        ArmTime(label, name, interval, compare(name, interval))
        for label, name, interval in zip(labels, TIMES, measured.times, strict=True)
    )
    return reference, candidate


def changes(times: tuple[ArmTime, ArmTime]) -> str:
    """Return both comparisons in words, the low precision first; "" if neither time is compared."""
    reference, candidate = times
    if reference.verdict is None or candidate.verdict is None:
        return ""
    if all(time.verdict is Verdict.PASS for time in times):
        return f"{candidate.label} and {reference.label} as long as before"
    return f"{candidate}, {reference}"


def milliseconds(interval: Interval | Observation) -> str:
    """Return a time in milliseconds, with its interval if it has one: ``1.234 [1.233, 1.236] ms``."""
    if isinstance(interval, Interval):
        middle, ends = interval.median, (interval.low, interval.high)
    else:
        assert isinstance(interval.value, (int, float))
        middle, ends = interval.value, interval.interval or (interval.value, interval.value)
    low, high = (f"{1e3 * end:.4g}" for end in ends)
    return f"{1e3 * middle:.4g} [{low}, {high}] ms"


def kernels_of(call: Callable[[], object], device: Device) -> dict[str, float]:
    """Return the seconds of each kernel of one ``call`` by name; empty where torch's profiler sees none."""
    if device.kind is not DeviceKind.ACCELERATOR or device.type != "cuda":
        return {}
    try:
        return kernel_times(call, device.synchronize)
    except (PrivateApiGone, RuntimeError):
        return {}


def top_kernels(seconds: dict[str, float]) -> list[Value]:
    """Return the kernels that took most of the time: name, seconds, share of the whole."""
    whole = sum(seconds.values())
    shortened: dict[str, float] = {}
    for name, duration in seconds.items():
        short = name.removeprefix("void ")[:LONGEST]
        shortened[short] = shortened.get(short, 0.0) + duration
    ordered = sorted(shortened.items(), key=lambda row: (-row[1], row[0]))[:KERNELS]
    return [[name, float(f"{duration:.4g}"), round(duration / whole, 3)] for name, duration in ordered]


def kernels_in_words(kernels: Value) -> str:
    """Return recorded kernels as text: ``61 % gemm, 20 % copy``; ``kernels not known`` without any."""
    rows = kernels if isinstance(kernels, list) else []
    shares = [
        f"{row[2]:.0%} {row[0]} ({1e3 * row[1]:.3g} ms)".replace("%", " %", 1)
        for row in rows
        if isinstance(row, list) and len(row) == 3 and isinstance(row[1], float) and isinstance(row[2], (int, float))
    ]
    return ", ".join(shares) or "kernels not known"
