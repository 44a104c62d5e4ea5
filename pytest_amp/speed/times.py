"""Comparison of both arms' times with a baseline, in words, and the kernels that took the time."""

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

#: Kernels of an arm that are recorded, and the length of a name: a line of a message has two of them.
KERNELS, LONGEST = 8, 40


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


def float32_gained(times: tuple[ArmTime, ArmTime]) -> bool:
    """Return whether float32 became faster on the same card, and autocast takes no longer than before."""
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
    """Return the seconds of each kernel of one ``call`` by name; empty where torch's profiler sees none."""
    if device.kind is not DeviceKind.ACCELERATOR or device.type != "cuda":
        return {}
    try:
        return kernel_times(call, device.synchronize)
    except (PrivateApiGone, RuntimeError):
        return {}


def top_kernels(seconds: dict[str, float]) -> list[Value]:
    """Return the kernels that took most of the time: short name, seconds, share of the whole."""
    whole = sum(seconds.values())
    by_name: dict[str, float] = {}
    for name, duration in seconds.items():
        by_name[short_name(name)] = by_name.get(short_name(name), 0.0) + duration
    ordered = sorted(by_name.items(), key=lambda row: (-row[1], row[0]))[:KERNELS]
    return [[name, float(f"{duration:.4g}"), round(duration / whole, 3)] for name, duration in ordered]


def short_name(name: str) -> str:
    """Return a kernel's name in at most LONGEST characters.

    It consists of the function's name and, for a template, the name of its functor, without namespaces, arguments and
    types of elements: ``vectorized_elementwise_kernel bfloat16_copy_kernel_cuda``. A longer name loses its middle.
    """
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    function, _, arguments = plain.partition("(")[0].partition("<")
    words = [word.rpartition("::")[2] for word in re.findall(r"[\w:]+", arguments)]
    functors = [word for word in words if re.search("kernel|functor|gemm|conv", word, re.IGNORECASE)]
    function = function.rpartition("::")[2]
    text = " ".join([function.strip(), *functors[:1]]) or name
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 15]}...{text[-12:]}"


def kernels_in_words(before: Value, now: Value) -> str:
    """Return the kernel whose time changed most, and the largest one; "" without kernels of this run.

    A kernel that is not among the largest of a run takes at most as long as the smallest of these.
    """
    old, new = _seconds_by_name(before), _seconds_by_name(now)
    if not new:
        return ""
    largest = max(new, key=new.__getitem__)
    if not old:
        return f"largest: {largest} {_ms(new[largest])} ms; the baseline names no kernels"
    least = [min(known.values()) if len(known) >= KERNELS else 0.0 for known in (old, new)]
    changed = max({**new, **old}, key=lambda name: abs(new.get(name, least[1]) - old.get(name, least[0])))
    if changed == largest:
        return f"largest, and changed most: {_change(largest, old, new)}"
    return f"changed most: {_change(changed, old, new)}; largest: {_change(largest, old, new)}"


def _change(name: str, old: dict[str, float], new: dict[str, float]) -> str:
    return f"{name} {_ms(old.get(name))} -> {_ms(new.get(name))} ms"


def _ms(seconds: float | None) -> str:
    return "none" if seconds is None else f"{1e3 * seconds:.3g}"


def _seconds_by_name(kernels: Value) -> dict[str, float]:
    """Return the seconds of recorded kernels; a record may have anything there."""
    rows = kernels if isinstance(kernels, list) else []
    pairs = [(row[0], row[1]) for row in rows if isinstance(row, list) and len(row) == 3]
    return {short_name(str(name)): seconds for name, seconds in pairs if isinstance(seconds, float)}
