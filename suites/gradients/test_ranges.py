"""Values near the limits of a format's range: results and gradients that are finite in float32 stay finite."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pytest_amp.amp import SuiteAmp

VOCABULARY = 32000


def finite(*tensors: Tensor | None) -> bool:
    return all(tensor is not None and bool(tensor.isfinite().all()) for tensor in tensors)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_over_a_large_vocabulary(amp: SuiteAmp, smoothing: float) -> None:
    """Sums over 32000 classes overflow fp16 though each term fits (huggingface/transformers#10674)."""
    device = amp.device.torch_device
    hidden = torch.randn(8, 16, device=device, requires_grad=True)
    head = torch.randn(VOCABULARY, 16, device=device, requires_grad=True)
    with amp.autocast():
        loss = f.cross_entropy(f.linear(10 * hidden, head), torch.arange(8, device=device), label_smoothing=smoothing)
    torch.autograd.backward(loss)
    assert loss.dtype == torch.float32
    assert finite(loss, hidden.grad, head.grad)


def padding(amp: SuiteAmp) -> Tensor:
    """Return a boolean mask for two sequences, of six and of three keys; True marks a key that takes part."""
    lengths = torch.tensor([6, 3], device=amp.device.torch_device)
    return (torch.arange(6, device=lengths.device) < lengths[:, None]).view(2, 1, 1, 6)


def filled(value: float, *, low: bool = False) -> Callable[[SuiteAmp], Tensor]:
    """Return an additive mask with ``value`` at the masked keys, in float32 or in the autocast dtype."""

    def mask(amp: SuiteAmp) -> Tensor:
        dtype = amp.dtype if low else torch.float32
        least = max(value, torch.finfo(dtype).min) if math.isfinite(value) else value
        return torch.zeros(2, 1, 1, 6, dtype=dtype, device=amp.device.torch_device).masked_fill(~padding(amp), least)

    return mask


MASKS: dict[str, Callable[[SuiteAmp], Tensor]] = {
    "boolean": padding,
    "infinite": filled(-math.inf),
    "infinite_low": filled(-math.inf, low=True),
    "least_float32": filled(torch.finfo(torch.float32).min),
    "least_low": filled(torch.finfo(torch.float32).min, low=True),
    "ten_thousand": filled(-1e4),
}


@pytest.mark.parametrize("mask", MASKS)
def test_masked_attention_is_finite(amp: SuiteAmp, mask: str) -> None:
    """Masked keys get no attention weight and no gradient, in any form of mask (huggingface/transformers#17306)."""
    q, k, v = (torch.randn(2, 2, 6, 16, device=amp.device.torch_device, requires_grad=True) for _ in range(3))
    with amp.autocast():
        mixed = f.scaled_dot_product_attention(q, k, v, attn_mask=MASKS[mask](amp))
    torch.autograd.backward(mixed.float().sum())
    assert finite(mixed, q.grad, k.grad, v.grad)
    assert k.grad is not None
    assert v.grad is not None
    assert not k.grad[1, :, 3:].any(), "a masked key has a gradient"
    assert not v.grad[1, :, 3:].any(), "a masked value has a gradient"
    assert v.grad[0].all(), "a value that is attended to has none"


@pytest.mark.parametrize("mask", ["boolean", "infinite", "least_float32", "ten_thousand"])
def test_masked_softmax_is_finite(amp: SuiteAmp, mask: str) -> None:
    """Compute attention explicitly, with ``masked_fill`` or with the mask added to the low-precision scores."""
    q, k, v = (torch.randn(2, 2, 6, 16, device=amp.device.torch_device, requires_grad=True) for _ in range(3))
    with amp.autocast():
        scores = q @ k.mT / 4
        result = MASKS[mask](amp)
        masked = scores.masked_fill(~result, -math.inf) if result.dtype == torch.bool else scores + result
        mixed = masked.softmax(-1) @ v
    torch.autograd.backward(mixed.float().sum())
    assert finite(mixed, q.grad, k.grad, v.grad)


def test_log_softmax_of_long_rows_is_finite(amp: SuiteAmp) -> None:
    """The sum of the exponentials of 70000 equal logits is beyond fp16's range."""
    logits = torch.zeros(2, 70000, device=amp.device.torch_device)
    with amp.autocast():
        low = f.linear(logits[:, :1], torch.zeros(70000, 1, device=logits.device))
        result = low.log_softmax(-1)
    assert finite(result)


def test_normalize_of_a_zero_row_is_zero(amp: SuiteAmp) -> None:
    with amp.autocast():
        low = f.linear(
            torch.zeros(2, 4, device=amp.device.torch_device), torch.ones(3, 4, device=amp.device.torch_device)
        )
        result = f.normalize(low, dim=1)
    assert not result.any()
    assert finite(result)


@pytest.mark.parametrize("loss", [f.mse_loss, f.huber_loss, f.smooth_l1_loss, f.l1_loss, f.poisson_nll_loss])
def test_losses_leave_the_range_of_the_low_dtype(amp: SuiteAmp, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    """The square of 24000 does not fit fp16; every loss is computed in float32."""
    device = amp.device.torch_device
    weight = torch.full((3, 4), 100.0 if loss is not f.poisson_nll_loss else 0.05, device=device, requires_grad=True)
    with amp.autocast():
        output = f.linear(torch.full((2, 4), 60.0, device=device), weight)
        value = loss(output, torch.zeros(2, 3, device=device))
    torch.autograd.backward(value * 2.0**-10)
    assert value.dtype == torch.float32
    assert finite(value, weight.grad)


def test_binary_cross_entropy_of_large_logits_is_finite(amp: SuiteAmp) -> None:
    device = amp.device.torch_device
    weight = torch.full((3, 4), 100.0, device=device, requires_grad=True)
    with amp.autocast():
        logits = f.linear(torch.full((2, 4), 90.0, device=device), weight)
        value = f.binary_cross_entropy_with_logits(logits, torch.zeros(2, 3, device=device))
    torch.autograd.backward(value)
    assert value.dtype == torch.float32
    assert finite(value, weight.grad)


def test_layer_norm_of_large_values_is_finite(amp: SuiteAmp) -> None:
    """Squares of 30000 do not fit fp16; layer_norm sums them in float32."""
    device = amp.device.torch_device
    norm = nn.LayerNorm(8).to(device)
    with amp.autocast():
        large = f.linear(
            torch.full((2, 4), 75.0, device=device), torch.linspace(-100, 100, 32, device=device).view(8, 4)
        )
        result = norm(large)
    torch.autograd.backward(result.float().square().sum())
    assert finite(result, norm.weight.grad, norm.bias.grad)


def test_a_gradient_below_the_range_needs_a_scale(amp: SuiteAmp) -> None:
    """A gradient of 1e-9 is zero in fp16, and lost without a loss scale; bf16 has float32's range."""
    device = amp.device.torch_device
    gradients = []
    for scale in (1.0, 2.0**16):
        weight = torch.ones(4, 4, device=device, requires_grad=True)
        with amp.autocast():
            output = f.linear(torch.ones(1, 4, device=device), weight)
        torch.autograd.backward(output.float().sum() * 1e-9 * scale)
        assert weight.grad is not None
        gradients.append(weight.grad / scale)
    plain, scaled = gradients
    assert bool(plain.any()) == (amp.precision.name == "bf16")
    assert torch.allclose(scaled, torch.full_like(scaled, 1e-9), rtol=2 * amp.precision.u, atol=0)
