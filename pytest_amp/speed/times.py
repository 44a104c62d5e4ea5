"""Times of a step in float32 and under autocast (the two arms): comparison with a baseline, and slowest kernels."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from pytest_amp.devices import Device, DeviceKind
from pytest_amp.record import Observation, Value, Verdict
from pytest_amp.record.times import TIMES, Terms, only_float32_gained
from pytest_amp.speed.measure import Measured
from pytest_amp.speed.verdict import Interval
from pytest_amp.torch_private import PrivateApiGone, kernel_times

#: Number of kernels that are recorded for an arm, and maximum length of a kernel's name: a message line has two names.
KERNELS, LONGEST = 8, 40


@dataclass(frozen=True)
class TimeBefore:
    """Comparison of a time with the time of the same arm in the baseline.

    ``compared`` is the observation of this run with its verdict, ``before`` the baseline's observation. ``terms`` say
    whether the two are comparable, and by which factors the baseline's interval is scaled. ``kernels`` are the
    baseline's slowest kernels by arm. ``cause`` is the likely cause of a change: a difference between the two runs.
    """

    compared: Observation
    before: Observation
    terms: Terms
    kernels: Value = None
    cause: str = ""


#: Function of a time's name, interval in seconds, margin and conditions, which compares it with the baseline; it
#: returns None if there is nothing to compare with.
CompareTime = Callable[[str, Interval, float, Value], TimeBefore | None]


@dataclass(frozen=True)
class ArmTime:
    """Time of one arm, and its comparison with a baseline, if there is one; ``label`` names the arm in messages."""

    label: str
    name: str
    interval: Interval
    compared: TimeBefore | None

    @property
    def verdict(self) -> Verdict | None:
        """Verdict of the comparison; None if the time was not compared."""
        if self.compared is None or self.compared.terms.absent:
            return None
        return self.compared.compared.verdict

    @property
    def is_slower(self) -> bool:
        """True if the verdict is that the arm takes longer than in the baseline."""
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
        # The factors are the ends of an interval: the message uses their geometric mean.
        change = self.interval.median / (old * (low * high) ** 0.5) - 1
        return f"{100 * abs(change):.2g} % {'longer' if change > 0 else 'less time'}"


def times_of(
    measured: Measured, labels: tuple[str, str], compare: Callable[[str, Interval], TimeBefore | None]
) -> tuple[ArmTime, ArmTime]:
    """Return the times of both arms, float32 first, with the comparison that ``compare(name, interval)`` returns."""
    reference, candidate = (
        ArmTime(label, name, interval, compare(name, interval))
        for label, name, interval in zip(labels, TIMES, measured.times, strict=True)
    )
    return reference, candidate


def changes(times: tuple[ArmTime, ArmTime]) -> str:
    """Return a message with both comparisons, autocast first; "" unless both times are compared."""
    reference, candidate = times
    if reference.verdict is None or candidate.verdict is None:
        return ""
    if all(time.verdict is Verdict.PASS for time in times):
        return f"{candidate.label} and {reference.label} as long as before"
    return f"{candidate}, {reference}"


def float32_gained(times: tuple[ArmTime, ArmTime]) -> bool:
    """Return whether float32 became faster on the same card, and autocast did not become slower."""
    reference, candidate = times
    if reference.compared is None or candidate.compared is None:
        return False
    return only_float32_gained(
        (reference.compared.terms, candidate.compared.terms), (reference.verdict, candidate.verdict)
    )


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
    """Profile one ``call``: return the seconds of each CUDA kernel by name; empty if torch's profiler sees none."""
    if device.kind is not DeviceKind.ACCELERATOR or device.type != "cuda":
        return {}
    try:
        return kernel_times(call, device.synchronize)
    except (PrivateApiGone, RuntimeError):
        return {}


def top_kernels(seconds: dict[str, float]) -> list[Value]:
    """Return the slowest kernels, at most KERNELS of them: short name, seconds, fraction of the total time."""
    total = sum(seconds.values())
    by_name: dict[str, float] = {}
    for name, duration in seconds.items():
        by_name[short_name(name)] = by_name.get(short_name(name), 0.0) + duration
    ordered = sorted(by_name.items(), key=lambda row: (-row[1], row[0]))[:KERNELS]
    return [[name, float(f"{duration:.4g}"), round(duration / total, 3)] for name, duration in ordered]


def short_name(name: str) -> str:
    """Shorten the name of a kernel to at most LONGEST characters.

    The result is the function's name and, for a template, the name of its functor, without namespaces, arguments and
    element types: ``vectorized_elementwise_kernel bfloat16_copy_kernel_cuda``. If it is still too long, its middle is
    replaced by ``...``.
    """
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    function, _, arguments = plain.partition("(")[0].partition("<")
    words = [word.rpartition("::")[2] for word in re.findall(r"[\w:]+", arguments)]
    functors = [word for word in words if re.search("kernel|functor|gemm|conv", word, re.IGNORECASE)]
    function = function.rpartition("::")[2]
    text = " ".join([function.strip(), *functors[:1]]) or name
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 15]}...{text[-12:]}"


def kernels_in_words(before: Value, now: Value) -> str:
    """Describe the kernel whose time changed most, and the slowest one; "" if this run has no kernels.

    Only the KERNELS slowest kernels of a run are recorded. A kernel that is missing in one run is assumed to take as
    long there as the fastest recorded one, its upper bound; if fewer are recorded, it did not run.
    """
    old, new = _seconds_by_name(before), _seconds_by_name(now)
    if not new:
        return ""
    largest = max(new, key=new.__getitem__)
    if not old:
        return f"largest: {largest} {_ms(new[largest])} ms; the baseline names no kernels"
    old_bound, new_bound = (min(run.values()) if len(run) >= KERNELS else 0.0 for run in (old, new))
    changed = max({**new, **old}, key=lambda name: abs(new.get(name, new_bound) - old.get(name, old_bound)))
    if changed == largest:
        return f"largest, and changed most: {_old_and_new(largest, old, new)}"
    return f"changed most: {_old_and_new(changed, old, new)}; largest: {_old_and_new(largest, old, new)}"


def slowest_in_words(kernels: Value) -> str:
    """Name the two slowest kernels of an arm with their times; "" if there are none."""
    seconds = _seconds_by_name(kernels)
    slowest = sorted(seconds, key=seconds.__getitem__, reverse=True)[:2]
    return ", ".join(f"{name} {_ms(seconds[name])} ms" for name in slowest)


def _old_and_new(name: str, old: dict[str, float], new: dict[str, float]) -> str:
    return f"{name} {_ms(old.get(name))} -> {_ms(new.get(name))} ms"


def _ms(seconds: float | None) -> str:
    return "none" if seconds is None else f"{1e3 * seconds:.3g}"


def _seconds_by_name(kernels: Value) -> dict[str, float]:
    """Return the seconds of recorded kernels by name; skip malformed rows, since a record may contain any JSON."""
    rows = kernels if isinstance(kernels, list) else []
    pairs = [(row[0], row[1]) for row in rows if isinstance(row, list) and len(row) == 3]
    return {short_name(str(name)): seconds for name, seconds in pairs if isinstance(seconds, float)}
