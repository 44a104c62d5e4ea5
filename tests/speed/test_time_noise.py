"""Rates of false alarms and of misses of a device's time against a baseline, simulated with a fixed seed."""

from __future__ import annotations

import numpy as np

from pytest_amp.devices import find_device
from pytest_amp.precision import BF16
from pytest_amp.record import Verdict
from pytest_amp.record.times import Terms, compare_time
from pytest_amp.speed import Demand, Interval, SpeedConditions
from pytest_amp.speed.demand import TOLERANCES
from pytest_amp.speed.verdict import LOOKS, hull, interval_of
from tests.speed.test_times import KEY, seconds

#: Relative noise of a quad, and from process to process, of replayed graphs (docs/lab/speed.md).
BLOCK, PROCESS = 0.0005, 0.0012


def reds(spread: float, block: float, change: float, nights: int) -> int:
    """Return in how many nights a device's time is red that takes ``change`` times as long.

    ``spread`` is the standard deviation from process to process, ``block`` that of a quad, on the logarithm. A process
    has the same offset in its second measurement as in its first.
    """
    rng = np.random.default_rng(29)

    def measured(offset: float) -> Interval:
        return interval_of(np.exp(rng.normal(offset, block, LOOKS[0])).tolist())

    margin = SpeedConditions(find_device("cpu"), BF16, "gate").time_loss(Demand("sums", 0.0, "tf32", kind="device"))
    count = 0
    for _ in range(nights):
        before = seconds(KEY, measured(rng.normal(0, spread)), margin)
        offset = rng.normal(np.log(change), spread)
        now = seconds(KEY, hull(measured(offset), measured(offset)), margin)
        count += compare_time(now, before, Terms(), fair=True).verdict is Verdict.REGRESSED
    return count


def test_healthy_times_are_not_red() -> None:
    """Spreads of replayed graphs, and those of a product of 4096 on an overloaded host: no night of 4000 is red."""
    assert reds(PROCESS, BLOCK, 1.0, 4000) == 0
    assert reds(0.0032, 0.0057, 1.0, 4000) == 0


def test_largest_spread_that_is_judged_is_red_once_in_a_thousand_nights() -> None:
    ((spread, _),) = TOLERANCES["device"]
    assert reds(spread, BLOCK, 1.0, 4000) <= 8


def test_two_percent_longer_is_red_in_nearly_every_night() -> None:
    assert reds(PROCESS, BLOCK, 1.02, 1000) >= 950
