"""Dropout: what is dropped going forward is dropped going back, and the rest keeps its mean."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from pytest_amp.amp import Amp

P = 0.4

DROPOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: f.dropout(x, P),
    "alpha_dropout": lambda x: f.alpha_dropout(x, P, training=True),
    "dropout2d": lambda x: f.dropout2d(x.view(8, 16, 8, 8), P).view(64, 128),
}


@pytest.mark.parametrize("of", ["low", "float32"])
@pytest.mark.parametrize("name", ["dropout", "dropout2d"])
def test_both_directions_drop_the_same(amp: Amp, name: str, of: str) -> None:
    values = torch.rand(64, 128, device=amp.device.torch_device) + 0.5
    leaf = values.to(amp.dtype if of == "low" else torch.float32).requires_grad_()
    with amp.autocast():
        result = DROPOUTS[name](leaf)
    torch.autograd.backward(result, torch.ones_like(result))
    assert leaf.grad is not None
    kept = result != 0
    assert torch.equal(kept, leaf.grad != 0), "the backward pass drops other elements than the forward pass"
    assert result.dtype == leaf.dtype
    scale = torch.tensor(1 / (1 - P), dtype=torch.float64)
    for value, wanted in ((result[kept], leaf[kept]), (leaf.grad[kept], torch.ones_like(leaf[kept]))):
        ratio = value.detach().double().cpu() / wanted.detach().double().cpu()
        assert torch.allclose(ratio, scale, rtol=4 * amp.precision.u, atol=0), "what is kept is scaled otherwise"


@pytest.mark.parametrize("name", DROPOUTS)
def test_the_share_that_is_dropped(amp: Amp, name: str) -> None:
    """Within five standard deviations of P, also for a mask that is drawn per channel."""
    with amp.autocast():
        result = DROPOUTS[name](torch.ones(64, 128, device=amp.device.torch_device, dtype=amp.dtype))
    draws = 128 if name == "dropout2d" else result.numel()
    dropped = float((result == result.min()).double().mean())
    assert abs(dropped - P) < 5 * (P * (1 - P) / draws) ** 0.5


def test_evaluation_drops_nothing(amp: Amp) -> None:
    values = torch.randn(64, 128, device=amp.device.torch_device)
    with amp.autocast():
        assert torch.equal(f.dropout(values, P, training=False), values)
