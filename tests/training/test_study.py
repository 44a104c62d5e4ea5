"""Optimizer of the long-run study: it matches torch's in float32, and its roundings do what their names say."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_amp.training.low_adamw import LowAdamW, Rounding, Storage, round_stochastically
from pytest_amp.training.study import BF16


def test_float32_optimizer_matches_torchs_adamw() -> None:
    torch.manual_seed(0)
    start = torch.randn(50)
    studied, torchs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    low, usual = LowAdamW([studied], Storage("float32")), torch.optim.AdamW([torchs], lr=1e-2, weight_decay=0.01)
    for _ in range(20):
        gradient = torch.randn(50)
        studied.grad, torchs.grad = gradient.clone(), gradient.clone()
        low.step(1e-2)
        usual.step()
    torch.testing.assert_close(studied, torchs, rtol=1e-6, atol=1e-7)


def test_stochastic_rounding_is_unbiased() -> None:
    values = torch.full((200_000,), 1 + 2.0**-10)
    actual = round_stochastically(values, torch.Generator().manual_seed(0))
    assert set(actual.tolist()) == {1.0, 1 + 2.0**-7}
    # Up with probability 1/8: the standard deviation of the share is 7e-4.
    assert float((actual > 1).double().mean()) == pytest.approx(1 / 8, abs=4e-3)
    exact = torch.tensor([1.0, -0.5, 3.0, 0.0])
    assert torch.equal(round_stochastically(exact, torch.Generator().manual_seed(0)).float(), exact)


def test_bf16_second_moment_stops_early() -> None:
    """It should approach one for gradients of one, by a thousandth of the difference a step: bf16 stops at a half."""
    weight = nn.Parameter(torch.ones(100))
    optimizer = LowAdamW([weight], Storage("low", second=BF16))
    for _ in range(5000):
        weight.grad = torch.ones_like(weight)
        optimizer.step(1e-4)
    (second,) = optimizer._second
    assert 0.2 < float(second.float().mean()) < 0.6


@pytest.mark.parametrize(
    ("rounding", "arrives"), [(Rounding.NEAREST, False), (Rounding.STOCHASTIC, True), (Rounding.KAHAN, True)]
)
def test_small_updates_arrive_only_with_better_rounding(rounding: Rounding, *, arrives: bool) -> None:
    """Add 1e-4 a thousand times to weights of one, whose neighbours in bf16 are 4e-3 below."""
    weight = nn.Parameter(torch.ones(1000, dtype=BF16))
    optimizer = LowAdamW([weight], Storage("low", weights=BF16, rounding=rounding))
    for _ in range(1000):
        weight.grad = torch.ones_like(weight)
        expected, stayed = optimizer.step(1e-4)
        assert expected == 1000
        assert (stayed == 1000) is (rounding is Rounding.NEAREST)
    moved = 1 - float(weight.detach().double().mean())
    if arrives:
        assert moved == pytest.approx(0.1, rel=0.05)
    else:
        assert moved == 0
