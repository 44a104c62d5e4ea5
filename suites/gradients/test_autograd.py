"""What user code sees of gradients: hooks, ``torch.autograd.grad``, second derivatives, rows that are padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pytest_amp.amp import Amp
from pytest_amp.numerics import relative_error


def test_a_hook_sees_a_gradient_of_its_tensors_dtype(amp: Amp) -> None:
    """Of the parameter float32, of the low result low: a hook may rely on it."""
    layer = nn.Linear(8, 8).to(amp.device.torch_device)
    seen: dict[str, torch.dtype] = {}
    x = torch.randn(4, 8, device=amp.device.torch_device, requires_grad=True)
    with amp.autocast():
        y = layer(x)
    low: Any = y
    low.register_hook(lambda gradient: seen.update(low=gradient.dtype))
    weight: Any = layer.weight
    weight.register_hook(lambda gradient: seen.update(weight=gradient.dtype))
    leaf: Any = x
    leaf.register_hook(lambda gradient: seen.update(input=gradient.dtype))
    torch.autograd.backward(y.float().square().sum())
    assert seen == {"low": amp.dtype, "weight": torch.float32, "input": torch.float32}


def test_grad_gives_what_backward_leaves(amp: Amp) -> None:
    """Bit for bit, float32 in full: also of a weight that is used in the region and beside it."""
    device = amp.device.torch_device
    layer, x = nn.Linear(24, 24).to(device), torch.randn(32, 24, device=device)

    def loss() -> Tensor:
        with amp.autocast():
            y: Tensor = layer(x)
        return (y.float().square().mean() + layer.weight.sin().square().mean()) * 64

    given = torch.autograd.grad(loss(), list(layer.parameters()))
    torch.autograd.backward(loss())
    for parameter, gradient in zip(layer.parameters(), given, strict=True):
        assert gradient.dtype == torch.float32
        assert parameter.grad is not None
        assert torch.equal(gradient, parameter.grad)
    amp.check_fp32(given[0], name="the gradient that grad returns")


@pytest.mark.parametrize("function", ["linear", "matmul", "conv2d", "gelu", "softmax", "layer_norm"])
def test_second_derivatives(amp: Amp, function: str) -> None:
    """A penalty on a gradient, as WGAN-GP has it, reaches the weights as it does in float64."""
    values, weights = (torch.empty(0), torch.empty(0)), torch.empty(0)

    def apply(x: Tensor, weight: Tensor) -> Tensor:
        if function == "conv2d":
            return f.conv2d(x.view(4, 4, 4, 4), weight.view(16, 4, 2, 2)).square()
        y = f.linear(x, weight) if function == "linear" else x @ weight.t()
        after: dict[str, Callable[[Tensor], Tensor]] = {
            "gelu": f.gelu,
            "softmax": lambda t: (t / 4).softmax(-1),  # a sharp one cancels
            "layer_norm": lambda t: f.layer_norm(t, (16,)),
        }
        return after[function](y) if function in after else y.square()

    def penalty(dtype: torch.dtype, *, region: bool) -> Tensor:
        x = values[0].to(device, dtype).requires_grad_()
        weight = (values[1][:, :16] if function == "conv2d" else values[1]).to(device, dtype).clone().requires_grad_()
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
            shape = apply(values[0], values[1][:, :16] if function == "conv2d" else values[1]).shape
        weights = torch.randn(shape)
        made, exact = penalty(torch.float32, region=True), penalty(torch.float64, region=False)
        assert made.dtype == torch.float32
        return {function: relative_error(made, exact)}

    device = amp.device.torch_device
    errors, over_seeds = amp.over_seeds(measured)
    error, again = errors[function], over_seeds.get(function)
    allowed = FEW * amp.precision.u * amp.config.tolerance_scale
    amp.observe(f"second/{function}", error, kind="error", unit="relative L2", allowed=allowed, over_seeds=again)
    assert error <= allowed, f"the second derivative of {function} is off by {error:.3g}"


#: In units of u: a second derivative makes some ten roundings. Measured 0.8 to 5.9 (CPU, torch 2.13, both dtypes, 10
#: seeds).
FEW = 12.0


def test_padding_rows_of_embeddings_get_no_gradient(amp: Amp) -> None:
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
