"""Decision rule under noise, simulated with fixed seeds: rates of false alarms and of misses.

Noise is on the logarithm of a block's time. Most kinds are those of measurements on shared machines; the last is that
of replayed graphs (H100 and H200, torch 2.11).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from pytest_amp.floors import shipped
from pytest_amp.speed.demand import MARGINS, TOLERANCES
from pytest_amp.speed.verdict import EAGER_MARGIN, LOOKS, PRECISE, Outcome, Rule, SpeedVerdict, combined, decide

PASS, FAIL, INCONCLUSIVE = Outcome.PASS, Outcome.FAIL, Outcome.INCONCLUSIVE

#: Noise on the logarithm of a block's time, for blocks in the order of a measurement.
Blocks = npt.NDArray[np.float64]
#: The candidate's blocks among four.
CANDIDATE = np.array([0.0, 1.0, 1.0, 0.0])
RATIO = np.array([0.5, -0.5, -0.5, 0.5])


def quiet(rng: np.random.Generator, blocks: int) -> Blocks:
    """Add half a percent, and occasionally a block that is preempted."""
    hit = rng.random(blocks) < 0.01
    return rng.normal(0, 0.005, blocks) + hit * np.log1p(0.1 * rng.pareto(2.0, blocks))


def heavy_tails(rng: np.random.Generator, blocks: int) -> Blocks:
    """Add two percent, and preempt every twelfth block."""
    hit = rng.random(blocks) < 0.08
    return rng.normal(0, 0.02, blocks) + hit * np.log1p(0.3 * rng.pareto(1.5, blocks))


def clock_drift(rng: np.random.Generator, blocks: int) -> Blocks:
    """Slow a card down by 15 percent as it gets warm."""
    return quiet(rng, blocks) + math.log(1.15) * (1 - np.exp(-np.arange(blocks) / 60))


def _flips(rng: np.random.Generator, blocks: int) -> Blocks:
    """Return 0 or 1, changing about every forty blocks."""
    return (np.cumsum(rng.random(blocks) < 1 / 40) % 2).astype(np.float64)


def two_clocks(rng: np.random.Generator, blocks: int) -> Blocks:
    """Switch between two clock rates that differ by 24 percent."""
    return quiet(rng, blocks) + math.log(1.24) * _flips(rng, blocks)


def power_limit(rng: np.random.Generator, blocks: int) -> Blocks:
    """Slow the candidate, which draws more power, by 19 percent and the reference by 10."""
    candidate = np.tile(CANDIDATE, blocks // 4)
    slow = _flips(rng, blocks) - 0.5
    return rng.normal(0, 0.005, blocks) + slow * np.where(candidate, math.log(1.19), math.log(1.10))


def own_offset(rng: np.random.Generator, blocks: int) -> Blocks:
    """Shift the candidate by a percent or two throughout the process, in either direction."""
    return quiet(rng, blocks) + rng.normal(0, 0.015) * np.tile(CANDIDATE, blocks // 4)


def busy_neighbour(rng: np.random.Generator, blocks: int) -> Blocks:
    """Make the machine up to twice as slow, and unsteady, for a third of the time."""
    start = rng.integers(0, 2 * blocks // 3)
    busy = np.zeros(blocks)
    busy[start : start + blocks // 3] = np.log(rng.uniform(1.3, 2.0))
    return quiet(rng, blocks) + busy * (1 + rng.normal(0, 0.2, blocks))


def all_at_once(rng: np.random.Generator, blocks: int) -> Blocks:
    """Combine heavy tails, clock rates, a neighbour and an offset of two percent."""
    offset = rng.normal(0, 0.02) * np.tile(CANDIDATE, blocks // 4)
    return heavy_tails(rng, blocks) + two_clocks(rng, blocks) + busy_neighbour(rng, blocks) + offset


def replayed(rng: np.random.Generator, blocks: int) -> Blocks:
    """Add 0.05 percent a block, and 0.15 percent from process to process, as for a captured step."""
    return rng.normal(0, 0.0005, blocks) + rng.normal(0, 0.0015) * np.tile(CANDIDATE, blocks // 4)


Noise = Callable[[np.random.Generator, int], Blocks]


def once(noise: Noise, true_ratio: float, rule: Rule, rng: np.random.Generator) -> SpeedVerdict:
    """Measure once."""
    log_times = noise(rng, 4 * 48).reshape(48, 4) + (1 - CANDIDATE) * math.log(true_ratio)
    log_ratios = iter((log_times @ RATIO).tolist())
    return decide(lambda: next(log_ratios), rule)


def trial(noise: Noise, true_ratio: float, rule: Rule, rng: np.random.Generator) -> Outcome:
    """Measure, and again if it fails."""
    first = once(noise, true_ratio, rule, rng)
    if first.outcome is not FAIL:
        return first.outcome
    return combined(first, once(noise, true_ratio, rule, rng)).outcome


TRIALS = 2000


def share(noise: Noise, true_ratio: float, outcome: Outcome) -> float:
    """Return the share of TRIALS checks of a floor of 1.5 with this outcome."""
    rule = Rule(1.5, margin=EAGER_MARGIN, precision=PRECISE)
    rng = np.random.default_rng([7, round(1000 * true_ratio)])
    return sum(trial(noise, 1.5 * true_ratio, rule, rng) is outcome for _ in range(TRIALS)) / TRIALS


STEADY = (quiet, clock_drift, two_clocks, heavy_tails, power_limit, busy_neighbour, own_offset)


@pytest.mark.parametrize("noise", STEADY, ids=lambda noise: noise.__name__)
def test_error_rates_against_a_floor_are_low(noise: Noise) -> None:
    """Take steps of the true speedup: 2 % above the floor, and 10 % and 20 % below it."""
    assert share(noise, 1.02, FAIL) == 0, "false red, 2 % above the floor"
    assert share(noise, 1.10, PASS) >= 0.97, "a clear gain passes"
    assert share(noise, 0.90, FAIL) >= 0.92, "a loss of 10 % is found"
    assert share(noise, 0.90, PASS) == 0, "a loss of 10 % never passes"
    assert share(noise, 0.80, FAIL) >= 0.99, "a loss of 20 % is found"


def test_error_rates_under_combined_noise_are_low() -> None:
    """With all noise combined the rule is undecided more often, and wrong no more often."""
    assert share(all_at_once, 1.02, FAIL) <= 0.001
    assert share(all_at_once, 0.90, PASS) <= 0.001
    assert share(all_at_once, 0.80, FAIL) >= 0.90


def against_a_baseline(noise: Noise, change: float, kind: str, trials: int = TRIALS) -> dict[Outcome, float]:
    """Return outcomes against a baseline of another process, with the same noise, at another speed."""
    rng = np.random.default_rng([11, round(1000 * change)])
    actual = dict.fromkeys(Outcome, 0)
    for _ in range(trials):
        before = once(noise, 1.5, Rule(0.0, precision=PRECISE), rng).interval
        rule = Rule(before.low * (1 - TOLERANCES[kind][-1][1]), margin=MARGINS[kind], precision=PRECISE)
        actual[trial(noise, 1.5 * change, rule, rng)] += 1
    return {outcome: count / trials for outcome, count in actual.items()}


def test_loss_of_two_percent_of_device_time_is_red() -> None:
    actual = against_a_baseline(replayed, 0.98, "device")
    assert actual[FAIL] >= 0.95
    assert actual[PASS] == 0
    assert against_a_baseline(replayed, 0.975, "device")[FAIL] >= 0.999


def test_healthy_card_is_not_red() -> None:
    """No check of 5000 is red."""
    assert against_a_baseline(replayed, 1.0, "device", trials=5000)[FAIL] == 0


#: Spread of a block within a process, on the logarithm: as large as on an H200, and in a step twice that.
WITHIN = {"device": 0.001, "step": 0.008}


def of_process(spread: float, kind: str, rng: np.random.Generator) -> Noise:
    """Return a process with the same offset of the candidate in its second measurement as in its first."""
    offset = rng.normal(0, spread)
    return lambda rng, blocks: rng.normal(0, WITHIN[kind], blocks) + offset * np.tile(CANDIDATE, blocks // 4)


@dataclass(frozen=True)
class Nights:
    """Nights in which a check is compared with a baseline from another process, with this spread.

    ``tolerance`` is the allowed loss. The baseline is drawn again each night, so that a bad one does not decide all of
    them.
    """

    kind: str
    spread: float
    tolerance: float
    looks: tuple[int, ...] = LOOKS

    def red(self, count: int, rng: np.random.Generator, change: float = 1.0) -> int:
        """Return in how many of ``count`` nights a check is red whose speedup changed by the factor ``change``."""
        actual = 0
        for _ in range(count):
            any_ = Rule(0.0, precision=PRECISE, looks=self.looks)
            before = once(of_process(self.spread, self.kind, rng), 1.5, any_, rng).interval
            floor = before.low * (1 - self.tolerance)
            rule = Rule(floor, margin=MARGINS[self.kind], precision=PRECISE, looks=self.looks)
            actual += trial(of_process(self.spread, self.kind, rng), 1.5 * change, rule, rng) is FAIL
        return actual


def test_calibrated_checks_of_a_healthy_card_are_hardly_ever_red() -> None:
    """Run ten times ninety nights, with every calibrated check of device time that a baseline judges."""
    ((limit, tolerance),) = TOLERANCES["device"]
    spreads = [row.spread for row in shipped() if row.kind == "device" and row.spread <= limit]
    rng = np.random.default_rng(13)
    assert len(spreads) > 20
    assert sum(Nights("device", spread, tolerance).red(900, rng) for spread in spreads) <= 1


def test_larger_spread_between_processes_is_often_red() -> None:
    """Twice the spread that a baseline may judge: red once in twenty nights."""
    ((limit, tolerance),) = TOLERANCES["device"]
    assert Nights("device", 2 * limit, tolerance).red(900, np.random.default_rng(13)) > 20


@pytest.mark.parametrize(("spread", "tolerance"), TOLERANCES["step"])
def test_healthy_step_is_not_red(spread: float, tolerance: float) -> None:
    """No night of 2000 is red at the smallest spread with this tolerance."""
    assert Nights("step", spread, tolerance).red(2000, np.random.default_rng(13)) == 0


@pytest.mark.parametrize(("looks", "least"), [(LOOKS, 0.96), (LOOKS[:2], 0.94), (LOOKS[:1], 0.85)])
def test_step_a_tenth_longer_is_red_with_a_small_spread(looks: tuple[int, ...], least: float) -> None:
    """Judge the smallest spread that may lose 3 %, with any number of quads; with 6 %, at most half are red."""
    (spread, tolerance), (_, more) = TOLERANCES["step"]
    rng = np.random.default_rng(13)
    assert Nights("step", spread, tolerance, looks).red(500, rng, 1 / 1.1) >= least * 500
    assert Nights("step", spread, more, looks).red(500, rng, 1 / 1.1) <= 0.5 * 500


def test_loss_of_a_tenth_of_step_time_is_red_with_little_noise() -> None:
    actual = against_a_baseline(quiet, 0.90, "step")
    assert actual[FAIL] >= 0.99
    assert actual[PASS] <= 0.005
    assert against_a_baseline(quiet, 0.85, "step")[FAIL] >= 0.99
    assert against_a_baseline(quiet, 1.0, "step")[FAIL] == 0
