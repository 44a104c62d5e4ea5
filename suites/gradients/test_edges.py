"""Functions near the limits of fp16's range: sums beyond 65504, an eps below 6e-8, large logits, constant rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pytest_amp.amp import SuiteAmp

#: Smaller than fp16's least positive number, 2**-24, so that it is zero there.
TINY_EPS = 1e-8


@dataclass(frozen=True)
class Edge:
    """Function, its low-precision input (``shape`` filled with ``value``), and its exact result if that is simple."""

    function: Callable[[Tensor], Tensor]
    value: float
    shape: tuple[int, ...] = (4, 64)
    expected: float | None = None


def _alternating(x: Tensor) -> Tensor:
    """Return a tensor with alternating signs."""
    signs = 1 - 2 * (torch.arange(x.shape[-1], device=x.device) % 2)
    return x * signs.to(x.dtype)


def _against_float64(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return 1 plus the error of ``function`` relative to float64, for consecutive values from 2048 on."""
    places = torch.arange(x.shape[-1], device=x.device)
    near = x + 2048 * torch.finfo(x.dtype).eps * (places * places % 7).to(x.dtype)
    expected = function(near.detach().cpu().double())
    return 1 + (function(near).cpu().double() - expected) / expected.abs().max()


def _images(x: Tensor) -> Tensor:
    return x.view(x.shape[0], 4, 4, -1)


EDGES: dict[str, Edge] = {
    "layer_norm_of_equal_numbers": Edge(lambda x: f.layer_norm(x, x.shape[-1:], eps=TINY_EPS), 3.0, expected=0.0),
    "group_norm_of_equal_numbers": Edge(lambda x: f.group_norm(x, 4, eps=TINY_EPS), 3.0, expected=0.0),
    "instance_norm_of_equal_numbers": Edge(lambda x: f.instance_norm(_images(x), eps=TINY_EPS), 3.0, expected=0.0),
    "batch_norm_of_equal_numbers": Edge(
        lambda x: f.batch_norm(x, None, None, training=True, eps=TINY_EPS), 3.0, expected=0.0
    ),
    "rms_norm_of_zeros": Edge(lambda x: f.rms_norm(x, x.shape[-1:], eps=TINY_EPS), 0.0, expected=0.0),
    "cosine_similarity_of_zeros": Edge(lambda x: f.cosine_similarity(x, x, eps=TINY_EPS), 0.0, expected=0.0),
    "cosine_similarity_beyond_the_range": Edge(lambda x: f.cosine_similarity(x, x), 300.0, expected=1.0),
    "norm_of_zeros": Edge(lambda x: x.norm(dim=-1), 0.0, expected=0.0),
    "vector_norm_of_zeros": Edge(lambda x: torch.linalg.vector_norm(x, dim=-1), 0.0, expected=0.0),
    "deviation_of_equal_numbers": Edge(lambda x: x.std(-1), 3.0, expected=0.0),
    # The variance of nearly equal values is lost to cancellation if it is computed from the mean of squares.
    "layer_norm_of_near_numbers": Edge(
        lambda x: _against_float64(lambda y: f.layer_norm(y, y.shape[-1:]), x), 3008.0, (4, 60), expected=1.0
    ),
    "group_norm_of_near_numbers": Edge(
        lambda x: _against_float64(lambda y: f.group_norm(y, 3), x), 3008.0, (4, 60), expected=1.0
    ),
    "deviation_of_near_numbers": Edge(
        lambda x: _against_float64(lambda y: y.std(-1), x), 3008.0, (4, 60), expected=1.0
    ),
    "mean_beyond_the_range": Edge(lambda x: x.mean(-1), 60.0, (4, 4096), expected=60.0),
    "variance_beyond_the_range": Edge(lambda x: _alternating(x).var(-1, correction=0), 200.0, (4, 4096), expected=4e4),
    "norm_beyond_the_range": Edge(lambda x: x.norm(dim=-1), 256.0, (4, 4096), expected=16384.0),
    "normalize_beyond_the_range": Edge(lambda x: f.normalize(x, dim=-1), 256.0, (4, 4096), expected=2.0**-6),
    "layer_norm_beyond_the_range": Edge(lambda x: f.layer_norm(_alternating(x), x.shape[-1:]).abs(), 3e4, expected=1.0),
    "rms_norm_beyond_the_range": Edge(lambda x: f.rms_norm(x, x.shape[-1:]), 3e4, expected=1.0),
    "avg_pool_beyond_the_range": Edge(lambda x: f.avg_pool2d(_images(x), 4), 6e4, expected=6e4),
    "logsumexp_of_many": Edge(lambda x: x.logsumexp(-1), 0.0, (2, 70000), expected=11.156),
    "softmax_of_many": Edge(lambda x: x.softmax(-1) * 70000, 0.0, (2, 70000), expected=1.0),
    "softmax_of_large_logits": Edge(lambda x: _alternating(x).softmax(-1), 6e4),
    "log_softmax_of_large_logits": Edge(lambda x: (_alternating(x) / 2).log_softmax(-1), 6e4),
    "gelu": Edge(lambda x: f.gelu(_alternating(x)), 6e4),
    "gelu_tanh": Edge(lambda x: f.gelu(_alternating(x), approximate="tanh"), 6e4),
    "silu": Edge(lambda x: f.silu(_alternating(x)), 6e4),
    "mish": Edge(lambda x: f.mish(_alternating(x)), 6e4),
    "softplus": Edge(lambda x: f.softplus(_alternating(x)), 6e4),
    "elu": Edge(lambda x: f.elu(_alternating(x)), 6e4),
    "tanh": Edge(lambda x: _alternating(x).tanh().abs(), 6e4, expected=1.0),
    "logaddexp": Edge(lambda x: torch.logaddexp(_alternating(x), -_alternating(x)), 6e4),
    "logsigmoid": Edge(lambda x: f.logsigmoid(_alternating(x)), 6e4),
    "cross_entropy": Edge(lambda x: f.cross_entropy(_alternating(x), torch.arange(4, device=x.device)), 3e4),
    "binary_cross_entropy": Edge(
        lambda x: f.binary_cross_entropy_with_logits(_alternating(x), torch.ones_like(x).float()), 6e4
    ),
    "attention_of_large_scores": Edge(
        lambda x: f.scaled_dot_product_attention(*(x.view(1, 4, 4, 16),) * 3), 100.0, expected=100.0
    ),
}


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.amp_parametrize("name", lambda _: EDGES)
def test_edges_are_finite(amp: SuiteAmp, name: str) -> None:
    """Results are finite forward and backward, from a weight whose gradient is float32."""
    edge = EDGES[name]
    device = amp.device.torch_device
    rows, columns = edge.shape
    weight = torch.full((columns, 1), edge.value, device=device, requires_grad=True)
    with amp.autocast():
        low = f.linear(torch.ones(rows, 1, device=device), weight)
        result = edge.function(low)
    assert low.dtype == amp.dtype
    assert result.isfinite().all(), f"{int((~result.isfinite()).sum())} of {result.numel()} are not finite"
    if edge.expected is not None:
        expected = torch.full_like(result, edge.expected, dtype=torch.float32)
        assert torch.allclose(result.float(), expected, rtol=4 * amp.precision.u, atol=1e-3)
    torch.autograd.backward(result.float().sum() * 2.0**-10)
    assert weight.grad is not None
    assert weight.grad.isfinite().all(), "the gradient is not finite"


def test_statistics_beyond_the_range(amp: SuiteAmp) -> None:
    """A variance of 90000, beyond fp16's range, is kept in float32 (similar to pytorch/pytorch#115500)."""
    device = amp.device.torch_device
    norm = nn.BatchNorm1d(1, momentum=1.0).to(device)
    with amp.autocast():
        low = f.linear(torch.ones(64, 1, device=device), torch.full((1, 1), 300.0, device=device))
        norm(_alternating(low.T).T)
    assert norm.running_var is not None
    assert norm.running_var.dtype == torch.float32
    assert torch.allclose(norm.running_var, torch.tensor(9e4 * 64 / 63, device=device), rtol=0.01)
