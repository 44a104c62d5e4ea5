"""Comparison of measured times: the same work on the same card, or on another one through its yardstick."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pytest_amp.record.compare import compare, judged
from pytest_amp.record.observation import Better, Kind, Observation, Value, Verdict

#: Last part of the keys of times, and of the observation beside them that says where they were measured.
TIMES = ("float32-time", "autocast-time")
CONDITIONS = "conditions"
#: Part by which a yardstick differs between healthy processes on one card. Beyond it, and both intervals, the card
#: itself runs at another speed: its clocks, its power limit, its driver. Six processes on one H200 (driver 580.159.04,
#: torch 2.11.0+cu130, 2026-11-29; docs/lab/speed.md) had standard deviations of 0.017 % (tensor-cores), 0.069 % (copy)
#: and 0.047 % (launch). The true one is at most 3.0 times as large (99 % bound of chi-squared with five degrees of
#: freedom), and two processes differ by 3.29 * sqrt(2) of that once in a thousand: 0.24 %, 0.96 % and 0.66 %.
#: tensor-cores has 0.5 %: a third of what a device's time may lose, so that a smaller change explains no red. The
#: host's launches vary with its load, by 17.5 % on the overloaded host of these runs: no noise limit is derived from
#: that. A step may lose a tenth; where the host's launches differ by half of it, and both intervals, the comparison of
#: the step's time says nothing.
NOISE = {"tensor-cores": 0.005, "copy": 0.01, "launch": 0.007, "host-launch": 0.05}
#: Yardsticks of a device's own time; a step also waits for the launches of its host.
OF_DEVICE = ("tensor-cores", "copy", "launch")
#: Yardsticks that translate a time from one card to another: work is arithmetic, memory traffic, or both.
TRANSLATING = ("tensor-cores", "copy")


@dataclass(frozen=True)
class Conditions:
    """Place of a measurement.

    ``gpu`` is the card's UUID, "" if it has none; ``host`` the name of the host's CPU. ``yardstick`` maps the name of a
    yardstick to the lower end, the median and the upper end of its interval in seconds, and is empty if the card cannot
    run it.
    """

    gpu: str
    host: str
    yardstick: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Value]:
        """Return plain JSON, with six significant digits."""
        ends: dict[str, Value] = {
            name: [float(f"{seconds:.6g}") for seconds in interval] for name, interval in self.yardstick.items()
        }
        return {"gpu": self.gpu, "host": self.host, "yardstick": ends}

    @classmethod
    def from_json(cls, data: Value) -> Conditions | None:
        """Return the conditions of an observation's value; None if it is no such value."""
        if not isinstance(data, dict):
            return None
        yardstick = data.get("yardstick")
        intervals = {}
        for name, ends in yardstick.items() if isinstance(yardstick, dict) else ():
            numbers = [end for end in ends if isinstance(end, (int, float))] if isinstance(ends, list) else []
            if len(numbers) == 3 and 0 < numbers[0] <= numbers[1] <= numbers[2] < math.inf:
                intervals[name] = (float(numbers[0]), float(numbers[1]), float(numbers[2]))
        return cls(str(data.get("gpu", "")), str(data.get("host", "")), intervals)


@dataclass(frozen=True)
class Terms:
    """Terms on which a time is compared with an earlier one.

    ``factors`` multiply the ends of the earlier interval. They are None, and ``reason`` says why, if the times are not
    comparable: the comparison is then INCONCLUSIVE, or left out if ``absent``.
    """

    factors: tuple[float, float] | None = (1.0, 1.0)
    reason: str = ""
    absent: bool = False

    @property
    def is_same_card(self) -> bool:
        """True if both times are of one card, so that the earlier one is compared as it is."""
        return self.factors == (1.0, 1.0)


def is_time(observation: Observation) -> bool:
    """Return whether an observation is the time of a step, measured with its conditions beside it."""
    return observation.kind is Kind.SECONDS and observation.key.rpartition("/")[2] in TIMES


def conditions_key(key: str) -> str:
    """Return the key of the conditions that belong to the time with ``key``."""
    return f"{key.rpartition('/')[0]}/{CONDITIONS}"


def times_keys(key: str) -> tuple[str, str]:
    """Return the keys of the times beside the speedup with ``key``: float32's first."""
    reference, candidate = (f"{key.rpartition('/')[0]}/{name}" for name in TIMES)
    return reference, candidate


def only_float32_gained(terms: tuple[Terms, Terms], verdicts: tuple[Verdict | None, Verdict | None]) -> bool:
    """Return whether a speedup fell on one card because float32 became faster, and autocast did not become slower.

    Both arguments are those of float32's time and of autocast's. Such a change is an improvement of torch, although
    the ratio is smaller than before.
    """
    reference, candidate = verdicts
    is_faster = reference is Verdict.IMPROVED and candidate in (Verdict.PASS, Verdict.IMPROVED)
    return is_faster and all(term.is_same_card for term in terms)


def terms(before: Observation, old: Value, new: Value) -> Terms:
    """Return the terms of a comparison with the time ``before``, measured under ``old``; now they are ``new``.

    A step's time is compared on the same card and host only. A device's time is compared on the same card, or, for
    another card, with the earlier time multiplied by the ratio of both cards' yardsticks: the interval of the product
    has the smallest and the largest of these ratios, which enclose that of any work made of them. A yardstick that
    moved by more than its NOISE makes every comparison inconclusive.
    """
    if before.interval is None:
        return Terms(None, "the baseline has no times", absent=True)
    was, now = Conditions.from_json(old), Conditions.from_json(new)
    if was is None or now is None or not was.gpu or not now.gpu:
        return Terms(None, "the card is not known by a UUID, and times are compared on one card", absent=True)
    is_step = before.key.split("/")[-2] == "step"
    if is_step and (was.gpu, was.host) != (now.gpu, now.host):
        places = f"{was.gpu}, {was.host} before, {now.gpu}, {now.host} now"
        return Terms(None, f"the time of a step is compared on the same card and host only: {places}", absent=True)
    return _by_yardstick(was, now, tuple(NOISE) if is_step else OF_DEVICE)


def _by_yardstick(was: Conditions, now: Conditions, relevant: tuple[str, ...]) -> Terms:
    names = [name for name in relevant if name in was.yardstick and name in now.yardstick]
    moved = [text for name in names if (text := _moved(name, was.yardstick[name], now.yardstick[name]))]
    if moved:
        return Terms(None, f"the card runs at another speed than in the baseline: {', '.join(moved)}")
    if was.gpu == now.gpu:
        return Terms()
    ratios = [_ratio(was.yardstick[name], now.yardstick[name]) for name in TRANSLATING if name in names]
    if len(ratios) < len(TRANSLATING):
        return Terms(None, f"another card ({was.gpu} before, {now.gpu} now), and no yardstick of both")
    return Terms((min(low for low, _ in ratios), max(high for _, high in ratios)))


def compare_time(now: Observation, before: Observation, terms: Terms, *, fair: bool) -> Observation:
    """Return ``now`` with the verdict of ``compare``, in which the earlier time is translated by ``terms``."""
    if terms.absent or not judged(now):
        return replace(now, baseline=before.value)
    if terms.factors is None:
        return replace(now, verdict=Verdict.INCONCLUSIVE, baseline=before.value)
    return replace(compare(now, translated(before, terms.factors), fair=fair), baseline=before.value)


def translated(before: Observation, factors: tuple[float, float]) -> Observation:
    """Return a time as it would be where the yardsticks take ``factors`` times as long."""
    assert before.interval is not None
    assert isinstance(before.value, (int, float))
    ends = before.interval[0] * factors[0], before.interval[1] * factors[1]
    return replace(before, value=before.value * math.sqrt(factors[0] * factors[1]), interval=ends)


def _moved(name: str, was: tuple[float, float, float], now: tuple[float, float, float]) -> str:
    """Return how a yardstick moved; "" if by no more than its noise."""
    old, new = (
        Observation(name, Kind.SECONDS, median, "s", interval=(low, high), better=Better.LOWER, margin=NOISE[name])
        for low, median, high in (was, now)
    )
    if compare(new, old).verdict not in (Verdict.REGRESSED, Verdict.IMPROVED):
        return ""
    change = now[1] / was[1] - 1
    return f"the yardstick {name} takes {abs(change):.1%} {'longer' if change > 0 else 'less time'}".replace("%", " %")


def _ratio(was: tuple[float, float, float], now: tuple[float, float, float]) -> tuple[float, float]:
    return now[0] / was[2], now[2] / was[0]
