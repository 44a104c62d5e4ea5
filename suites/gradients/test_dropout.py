"""Dropout drops the same elements forward and backward, and the mean of the result stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pytest_amp.amp import SuiteAmp
from pytest_amp.run.targets import Target

P = 0.4

DROPOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: f.dropout(x, P),
    "alpha_dropout": lambda x: f.alpha_dropout(x, P, training=True),
    "dropout2d": lambda x: f.dropout2d(x.view(8, 16, 8, 8), P).view(64, 128),
}


@pytest.mark.parametrize("of", ["low", "float32"])
@pytest.mark.parametrize("name", ["dropout", "dropout2d"])
def test_both_directions_drop_the_same(amp: SuiteAmp, name: str, of: str) -> None:
    values = torch.rand(64, 128, device=amp.device.torch_device) + 0.5
    leaf = values.to(amp.dtype if of == "low" else torch.float32).requires_grad_()
    with amp.autocast():
        result = DROPOUTS[name](leaf)
    torch.autograd.backward(result, torch.ones_like(result))
    assert leaf.grad is not None
    retained = result != 0
    assert torch.equal(retained, leaf.grad != 0), "the backward pass drops other elements than the forward pass"
    assert result.dtype == leaf.dtype
    scale = torch.tensor(1 / (1 - P), dtype=torch.float64)
    for value, expected in ((result[retained], leaf[retained]), (leaf.grad[retained], torch.ones_like(leaf[retained]))):
        ratio = value.detach().double().cpu() / expected.detach().double().cpu()
        assert torch.allclose(ratio, scale, rtol=4 * amp.precision.u, atol=0), "what is kept is scaled otherwise"


@pytest.mark.parametrize("name", DROPOUTS)
def test_the_share_that_is_dropped(amp: SuiteAmp, name: str) -> None:
    """The dropped share is within five standard deviations of P, also for a mask that is drawn per channel."""
    with amp.autocast():
        result = DROPOUTS[name](torch.ones(64, 128, device=amp.device.torch_device, dtype=amp.dtype))
    draws = 128 if name == "dropout2d" else result.numel()
    dropped = float((result == result.min()).double().mean())
    assert abs(dropped - P) < 5 * (P * (1 - P) / draws) ** 0.5


@pytest.mark.parametrize("name", DROPOUTS)
def test_each_call_draws_anew(amp: SuiteAmp, name: str) -> None:
    values = torch.ones(64, 128, device=amp.device.torch_device, dtype=amp.dtype)
    with amp.autocast():
        one, other = (DROPOUTS[name](values) for _ in range(2))
    assert not torch.equal(one, other), "two calls drop the same elements"


@pytest.mark.parametrize("of", ["low", "float32"])
def test_all_or_nothing(amp: SuiteAmp, of: str) -> None:
    """Dropout with p=1 leaves nothing, forward and backward; p=0 leaves every bit."""
    values = torch.randn(64, 128).to(amp.device.torch_device, amp.dtype if of == "low" else torch.float32)
    for p, retained in ((1.0, torch.zeros_like(values)), (0.0, values)):
        leaf = values.clone().requires_grad_()
        with amp.autocast():
            result = f.dropout(leaf, p)
        torch.autograd.backward(result, torch.ones_like(result))
        assert leaf.grad is not None
        assert torch.equal(result, retained), f"p={p} changes values"
        assert torch.equal(leaf.grad, torch.full_like(leaf, 1 - p)), f"p={p} changes the gradient"


def test_evaluation_drops_nothing(amp: SuiteAmp) -> None:
    values = torch.randn(64, 128, device=amp.device.torch_device)
    with amp.autocast():
        assert torch.equal(f.dropout(values, P, training=False), values)


#: This bias opens a gate; its negative closes it.
_OPEN = 30.0


def _units(kind: type[nn.RNNBase]) -> nn.RNNBase:
    """Return two layers that pass each value on, without a memory: dropped values are zero in the result."""
    size = 32
    layer: Any = cast("Callable[..., Any]", kind)(size, size, 2, dropout=P)
    gates = {nn.RNN: (None,), nn.GRU: (_OPEN, -_OPEN, None), nn.LSTM: (_OPEN, -_OPEN, None, _OPEN)}[kind]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        for number, gate in enumerate(gates):
            place = slice(number * size, (number + 1) * size)
            for level in (0, 1):
                if gate is None:
                    getattr(layer, f"weight_ih_l{level}")[place] = torch.eye(size)
                else:
                    getattr(layer, f"bias_ih_l{level}")[place] = gate
    return layer  # type: ignore[no-any-return]


def _recurrent(_target: Target) -> Iterator[object]:
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        yield pytest.param(kind, id=kind.__name__)


@pytest.mark.amp_parametrize("kind", _recurrent)
def test_recurrent_layers_drop_between_their_layers(amp: SuiteAmp, kind: type[nn.RNNBase]) -> None:
    """Layers drop P of the values, each independently, the same forward and backward; none in evaluation mode."""
    device = amp.device.torch_device
    layer = _units(kind).to(device)
    x = torch.full((16, 8, 32), 0.5, device=device, requires_grad=True)
    with amp.autocast():
        result = layer(x)[0]
    torch.autograd.backward(result, torch.ones_like(result))
    assert x.grad is not None
    retained = result.detach().abs() > 0.1
    share = 1 - float(retained.double().mean())
    assert abs(share - P) < 5 * (P * (1 - P) / retained.numel()) ** 0.5, f"{share:.3f} of the elements are dropped"
    assert torch.equal(retained, x.grad.abs() > 0.1), "the backward pass drops other elements than the forward pass"
    assert len(set(retained.double().mean(0).flatten().tolist())) > 2, "the same elements are dropped at each step"
    with torch.no_grad(), amp.autocast():
        evaluated = layer.eval()(x)[0]
    assert bool((evaluated.abs() > 0.1).all()), "something is dropped in evaluation mode"
