"""Discontinuities: rounding may change a whole gradient of one draw, which is then judged by other draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from pytest_amp.cases import Case
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.gradients import check_gradients
from pytest_amp.precision import BF16
from tests.observing import Noted

pytestmark = pytest.mark.usefixtures("one_thread")


def _at_a_step() -> Case:
    """Return a case that is within 2**-12 of a jump of the loss in half of all draws: bf16 decides the side."""

    def build() -> nn.Module:
        layer = nn.Linear(32, 32, bias=False)
        nn.init.eye_(layer.weight)
        return layer

    def batch() -> Tensor:
        near = torch.rand(()) < 0.5
        return torch.ones(32, 32) * (1 + 2.0**-12 if near else 2.0) + torch.eye(32)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = model(x).float()
        return y.square().mean() * torch.where(y[0, 1] > 1, 2.0, 1.0)

    return Case("at a step", build, batch, loss)


def _run(case: Case, seed: int) -> dict[str, float]:
    observed = Noted()
    check_gradients(case, Conditions(find_device("cpu"), BF16, seed), observed.observe)
    return observed


def test_draw_at_a_discontinuity_is_judged_by_other_draws() -> None:
    """If rounding decides in the next draws, too, the check fails."""
    case = _at_a_step()
    near = [bool(case.realise(seed=seed).batch[0, 1] < 2) for seed in range(60)]
    alone = next(seed for seed in range(58) if near[seed : seed + 3] == [True, False, False])
    observed = _run(case, alone)
    assert observed["at a step/summary.redrawn"] == 1
    assert observed["at a step/summary.equal"] == 1
    assert "at a step/summary.redrawn" not in _run(case, alone + 1)
    often = next(seed for seed in range(58) if near[seed : seed + 2] == [True, True])
    with pytest.raises(AmpFailure, match=r"the predicted rounding loses \d+% of the"):
        _run(case, often)
