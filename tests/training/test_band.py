"""Band of losses: its width comes from the companion runs, and losses that are not finite are outside."""

from __future__ import annotations

import pytest

from pytest_amp.training import WIDTH, make_band

LOSSES = [4.0, 3.0, 2.0, 1.0]


def test_band_width_is_a_multiple_of_the_spread() -> None:
    curves = [[x + 0.1 for x in LOSSES], [x - 0.1 for x in LOSSES]]
    band = make_band(LOSSES, curves, u=2.0**-20)
    assert band.spread == pytest.approx([0.1] * 4)
    assert band.half == pytest.approx([0.1 * WIDTH] * 4)
    assert make_band(LOSSES, curves, u=2.0**-20, scale=0.5).half == pytest.approx([0.05 * WIDTH] * 4)


def test_band_is_at_least_two_roundings_wide() -> None:
    assert make_band(LOSSES, [LOSSES], u=2.0**-8).half == pytest.approx([x * 2.0**-7 for x in LOSSES])


@pytest.mark.parametrize("value", [1.0 + 0.11 * WIDTH, float("nan"), float("inf"), -float("inf")])
def test_first_loss_outside_the_band_is_found(value: float) -> None:
    band = make_band(LOSSES, [[x + 0.1 for x in LOSSES]], u=2.0**-20)
    assert band.leaves([4.0, 3.0, 2.0, value]) == 3
    assert band.leaves([4.0, 3.0 + 0.09 * WIDTH, 2.0, 1.0]) is None
