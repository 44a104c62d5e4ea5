"""Tensors that a model's library caches between calls, in a function that all copies of the model share."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn

from pytest_amp.cases import Case
from pytest_amp.devices import find_device
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.gradients import check_gradients
from pytest_amp.precision import BF16, FP16, Precision
from tests.observing import Noted


@functools.lru_cache(maxsize=1)
def positions(length: int, dtype: torch.dtype) -> Tensor:
    return (torch.arange(length, dtype=dtype) / length).sin()


@functools.lru_cache(maxsize=4)
def pair_of_positions(length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.arange(length).to(dtype).sin(), torch.arange(length).to(dtype).cos()


class Cached(nn.Module):
    """Model that adds cached positions, in the dtype of its first layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        sine, cosine = pair_of_positions(16, y.dtype)
        result: Tensor = self.second(y + positions(16, y.dtype).view(1, 16) + sine.view(1, 16) * cosine.view(1, 16))
        return result


@pytest.mark.parametrize("precision", [BF16, FP16], ids=["bf16", "fp16"])
def test_cached_positions_of_a_predicted_run_are_dropped(precision: Precision) -> None:
    case = Case("cached", Cached, lambda: torch.randn(12, 16), lambda model, x: model(x).float().square().mean())
    observed = Noted()
    check_gradients(case, Conditions(find_device("cpu"), precision, 0), observed.observe)
    assert observed["cached/summary.equal"] == 1
