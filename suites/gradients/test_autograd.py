"""Gradients in user code: hooks, ``torch.autograd.grad``, second derivatives, rows of padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pytest_amp.amp import SuiteAmp
from pytest_amp.numerics import relative_error


def test_a_hook_sees_a_gradient_of_its_tensors_dtype(amp: SuiteAmp) -> None:
    """Hooks see float32 gradients of a parameter, and low-precision gradients of a low-precision result."""
    layer = nn.Linear(8, 8).to(amp.device.torch_device)
    dtypes: dict[str, torch.dtype] = {}
    x = torch.randn(4, 8, device=amp.device.torch_device, requires_grad=True)
    with amp.autocast():
        y = layer(x)
    low: Any = y
    low.register_hook(lambda gradient: dtypes.update(low=gradient.dtype))
    weight: Any = layer.weight
    weight.register_hook(lambda gradient: dtypes.update(weight=gradient.dtype))
    leaf: Any = x
    leaf.register_hook(lambda gradient: dtypes.update(input=gradient.dtype))
    torch.autograd.backward(y.float().square().sum())
    assert dtypes == {"low": amp.dtype, "weight": torch.float32, "input": torch.float32}


def test_grad_gives_what_backward_leaves(amp: SuiteAmp) -> None:
    """``torch.autograd.grad`` has the bits of backward, in full float32, also of a weight used inside and outside."""
    device = amp.device.torch_device
    layer, x = nn.Linear(24, 24).to(device), torch.randn(32, 24, device=device)

    def loss() -> Tensor:
        with amp.autocast():
            y: Tensor = layer(x)
        return (y.float().square().mean() + layer.weight.sin().square().mean()) * 64

    actual = torch.autograd.grad(loss(), list(layer.parameters()))
    torch.autograd.backward(loss())
    for parameter, gradient in zip(layer.parameters(), actual, strict=True):
        assert gradient.dtype == torch.float32
        assert parameter.grad is not None
        assert torch.equal(gradient, parameter.grad)
    amp.check_fp32(actual[0], name="the gradient that grad returns")


def _after(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return ``function`` of a product."""
    return lambda x, weight: function(x @ weight.t())


def _squared(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the square of ``function`` of a product, so that its incoming gradient depends on the weights, too."""
    return lambda x, weight: function(x @ weight.t()).square()


def _normed(t: Tensor) -> Tensor:
    return f.batch_norm(t, None, None, training=True, eps=0.1)  # four rows, some of them close


#: Functions of an input of (4, 64) and a weight of (16, 64): most are squared, for products are linear.
SECOND: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda x, w: f.linear(x, w).square(),
    "matmul": lambda x, w: (x @ w.t()).square(),
    "bmm": lambda x, w: torch.bmm(x.view(4, 4, 16), w[:, :16].expand(4, 16, 16)).square(),
    "baddbmm": lambda x, w: torch.baddbmm(w[:4, :16], x.view(4, 4, 16), w[:, :16].expand(4, 16, 16)).square(),
    "einsum": lambda x, w: torch.einsum("bi,oi->bo", x, w).square(),
    "conv1d": lambda x, w: f.conv1d(x.view(4, 8, 8), w[:, :16].reshape(16, 8, 2)).square(),
    "conv2d": lambda x, w: f.conv2d(x.view(4, 4, 4, 4), w[:, :16].reshape(16, 4, 2, 2)).square(),
    "conv_transpose2d": lambda x, w: f.conv_transpose2d(
        x.view(4, 4, 4, 4), w[:, :16].reshape(4, 16, 2, 2), stride=2
    ).square(),
    "gelu": _squared(f.gelu),
    "silu": _squared(f.silu),
    "tanh": _squared(lambda t: torch.tanh(t / 4)),  # terms cancel where it is flat
    "sigmoid": _squared(lambda t: torch.sigmoid(t / 4)),
    "softplus": _squared(f.softplus),
    "softmax": _after(lambda t: (t / 4).softmax(-1)),  # a sharp one cancels
    "log_softmax": _after(lambda t: (t / 4).log_softmax(-1)),
    "layer_norm": _after(lambda t: f.layer_norm(t, (16,))),
    "group_norm": _after(lambda t: f.group_norm(t.view(4, 4, 4), 2)),
    "batch_norm": _after(_normed),
}


@pytest.mark.parametrize("function", SECOND)
def test_second_derivatives(amp: SuiteAmp, function: str) -> None:
    """The penalty on a gradient, as in WGAN-GP, has the same gradients of the weights as in float64."""
    values, weights = (torch.empty(0), torch.empty(0)), torch.empty(0)
    apply = SECOND[function]

    def penalty(dtype: torch.dtype, *, region: bool) -> Tensor:
        x = values[0].to(device, dtype).requires_grad_()
        weight = values[1].to(device, dtype).clone().requires_grad_()
        with amp.autocast(enabled=region):
            y = apply(x, weight)
            wide = y if y.dtype == torch.float64 else y.float()
            (gradient,) = torch.autograd.grad((wide * weights.to(device, wide.dtype)).sum(), x, create_graph=True)
        torch.autograd.backward(gradient.square().mean() * 64)
        assert weight.grad is not None
        return weight.grad

    def measured() -> dict[str, float]:
        nonlocal values, weights
        values = (torch.randn(4, 64), torch.randn(16, 64) / 4)
        with torch.no_grad():
            shape = apply(values[0], values[1]).shape
        weights = torch.randn(shape)
        result, exact = penalty(torch.float32, region=True), penalty(torch.float64, region=False)
        assert result.dtype == torch.float32
        return {function: relative_error(result, exact)}

    device = amp.device.torch_device
    errors, over_seeds = amp.over_seeds(measured)
    error, again = errors[function], over_seeds.get(function)
    allowed = FEW * amp.precision.u * amp.config.tolerance_scale
    amp.observe(f"second/{function}", error, kind="error", unit="relative L2", allowed=allowed, over_seeds=again)
    assert error <= allowed, f"the second derivative of {function} has an error of {error:.3g}"


#: In units of u: a second derivative makes some ten roundings. Measured 0.9 to 6.6 (CPU, torch 2.13, both dtypes, 10
#: seeds).
FEW = 12.0


def test_padding_rows_of_embeddings_get_no_gradient(amp: SuiteAmp) -> None:
    device = amp.device.torch_device
    indices = torch.tensor([[0, 3, 5], [5, 0, 1]], device=device)
    for embedding in (nn.Embedding(8, 16, padding_idx=0), nn.EmbeddingBag(8, 16, padding_idx=0, mode="sum")):
        layer = embedding.to(device)
        head = nn.Linear(16, 4).to(device)
        with amp.autocast():
            y = head(layer(indices))
        torch.autograd.backward(y.float().square().sum())
        gradient = layer.weight.grad
        assert isinstance(gradient, Tensor)
        assert not gradient[0].any(), "the padding row has a gradient"
        assert gradient[[1, 3, 5]].any(1).all(), "a row that is used has none"
        assert not gradient[[2, 4, 6, 7]].any(), "a row that is not used has one"
