"""Shares of the noise of the gradients, or of the outputs, that arise at the calls of a step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_amp.cases import Case
from pytest_amp.devices import find_device
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.noise_shares import Noisy, noisy_calls
from pytest_amp.numerics.oracle.module_places import Direction
from pytest_amp.numerics.prediction import manual_region
from pytest_amp.precision import BF16

pytestmark = pytest.mark.usefixtures("one_thread")


def shares(case: Case, *, of_outputs: bool = False) -> list[Noisy]:
    device = find_device("cpu")
    conditions, region = Conditions(device, BF16, 0), manual_region(device, BF16, inside=True)
    realised = case.realise(seed=0)
    return noisy_calls(case, realised, conditions, region, loss_scale=1.0, of_outputs=of_outputs)[0]


class Attention(nn.Module):
    """Attention whose result is copied or not, by its layout, before it is reshaped."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.last = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Return the last layer's outputs."""
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous().flatten(2)
        result: Tensor = self.last(y)
        return result


def test_shares_of_all_calls_add_up_across_copies_for_a_layout() -> None:
    case = Case("attends", Attention, lambda: torch.randn(2, 5, 16), lambda m, x: m(x).float().square().mean())
    ranked = shares(case)
    assert sum(noisy.share for noisy in ranked) == pytest.approx(1, abs=0.05)
    assert [noisy.share for noisy in ranked] == sorted((noisy.share for noisy in ranked), reverse=True)
    assert {noisy.call.site.direction for noisy in ranked if noisy.share > 0.01} == set(Direction)


def test_halves_of_a_buffer_pass_on_the_shares_of_both() -> None:
    def halves(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x).float()
        joined = torch.empty_like(y)
        joined[:, :4] = torch.sin(y[:, :4] * 100)
        joined[:, 4:] = torch.cos(y[:, 4:] * 100)
        result: Tensor = joined.square().mean()
        return result

    ranked = shares(Case("halves", lambda: nn.Linear(8, 8), lambda: torch.randn(4, 8), halves))
    assert {"sin", "cos"} <= {noisy.call.operator for noisy in ranked if noisy.share > 0.01}
    assert not any(noisy.call.operator.startswith("empty") for noisy in ranked)


def test_value_that_is_lost_is_not_lost_again() -> None:
    """A share stays where the error first reaches the size of the values, however much it grows afterwards."""

    def grows(model: nn.Module, x: Tensor) -> Tensor:
        y = (model(x).float() + 2000).to(torch.bfloat16).float() - 2000
        result: Tensor = y.pow(5).mean()
        return result

    ranked = shares(Case("grows", lambda: nn.Linear(8, 8), lambda: torch.randn(4, 8), grows), of_outputs=True)
    assert ranked[0].call.operator == "sub"
