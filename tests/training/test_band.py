"""Band of losses: its width comes from the companion runs, and losses that are not finite are outside."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.cases import mlp
from pytest_amp.devices import find_device
from pytest_amp.precision import BF16
from pytest_amp.training import WIDTH, Setup, TooLittleSeen, make_band
from pytest_amp.training.band import redrawn_band, widened

LOSSES = [4.0, 3.0, 2.0, 1.0]


def test_band_width_is_a_multiple_of_the_spread() -> None:
    curves = [[x + 0.1 for x in LOSSES], [x - 0.1 for x in LOSSES]]
    band = make_band(LOSSES, curves, u=2.0**-20)
    assert band.spread == pytest.approx([0.1] * 4)
    assert band.half == pytest.approx([0.1 * WIDTH] * 4)
    assert make_band(LOSSES, curves, u=2.0**-20, scale=0.5).half == pytest.approx([0.05 * WIDTH] * 4)


def test_band_is_at_least_two_roundings_wide() -> None:
    assert make_band(LOSSES, [LOSSES], u=2.0**-8).half == pytest.approx([x * 2.0**-7 for x in LOSSES])


def test_band_names_what_decides_its_width() -> None:
    assert make_band(LOSSES, [LOSSES], u=2.0**-8).width_in_words(1).startswith("two roundings of the loss")
    wide = make_band(LOSSES, [[x + 0.1 for x in LOSSES]], u=2.0**-20)
    assert wide.width_in_words(1) == "4 spreads of float32 runs whose weights are rounded"
    narrow = make_band([4.0, 1e-6, 1e-6], [[4.0, 1e-6, 1e-6]], u=2.0**-8)
    assert narrow.width_in_words(2).startswith("a rounding of the first loss")


@pytest.mark.parametrize("value", [1.0 + 0.11 * WIDTH, float("nan"), float("inf"), -float("inf")])
def test_first_loss_outside_the_band_is_found(value: float) -> None:
    band = make_band(LOSSES, [[x + 0.1 for x in LOSSES]], u=2.0**-20)
    assert band.leaves([4.0, 3.0, 2.0, value]) == 3
    assert band.leaves([4.0, 3.0 + 0.09 * WIDTH, 2.0, 1.0]) is None


@pytest.mark.parametrize("bias", [0.0, 10.0])
def test_runs_with_manual_casts_widen_the_band_by_their_spread_and_not_by_their_bias(bias: float) -> None:
    narrow = make_band(LOSSES, [[x + 0.1 for x in LOSSES]], u=2.0**-20)
    cast = [[x + bias + shift for x in LOSSES] for shift in (-0.5, 0.5)]
    assert widened(narrow, cast, u=2.0**-20).half == pytest.approx([0.5 * 2**0.5 * WIDTH] * 4)
    assert widened(narrow, [[x + bias for x in LOSSES]] * 2, u=2.0**-20).half == narrow.half


def test_band_of_a_converged_loss_is_a_rounding_of_the_first_one() -> None:
    losses = [4.0, 1.0, 1e-3, 1e-6]
    assert make_band(losses, [losses], u=2.0**-8).half == pytest.approx([2.0**-5, 2.0**-7, 2.0**-6, 2.0**-6])


def test_band_of_redrawn_runs_contains_each_of_them_with_room_to_spare() -> None:
    neighbours = [[x + 0.1 for x in LOSSES] for _ in range(15)]
    outlier = [*LOSSES[:-1], LOSSES[-1] + 2.0]
    band = redrawn_band(LOSSES, [*neighbours, outlier], u=2.0**-20)
    assert band.margin(outlier) == pytest.approx(1 / 1.5)
    assert band.leaves([*LOSSES[:-1], LOSSES[-1] + 3.1]) == 3
    assert "times that for 16 runs which all draw different numbers" in band.width_in_words(3)
    assert redrawn_band(LOSSES, neighbours, u=2.0**-20).half == make_band(LOSSES, neighbours, u=2.0**-20).half


def test_tolerance_scale_multiplies_the_band_of_redrawn_runs() -> None:
    redrawn = [*([[x + 0.1 for x in LOSSES]] * 15), [*LOSSES[:-1], LOSSES[-1] + 2.0]]
    band, wide = (redrawn_band(LOSSES, redrawn, u=2.0**-20, scale=scale) for scale in (1.0, 2.0))
    assert wide.half == pytest.approx([2 * half for half in band.half])


def test_change_that_is_too_small_is_that_of_the_step_that_shows_most() -> None:
    """A loss that rises and falls back has its largest change in a narrow part of the band, or in a wide one."""
    losses, noise = [1.0, 3.0, 1.1, 1.1, 1.1, 1.1, 1.1], [0.0, 1.0, 0.0, 0.05, 0.05, 0.05, 0.05]
    band = make_band(losses, [[loss + more for loss, more in zip(losses, noise, strict=True)]], u=2.0**-9)
    setup = Setup(mlp(), find_device("cpu"), BF16, steps=len(losses), make_optimizer=torch.optim.AdamW)
    failure = TooLittleSeen(setup, band)
    assert failure.moved / failure.needed == pytest.approx(band.visible / 4)
    assert failure.moved < failure.needed
