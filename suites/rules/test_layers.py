"""Layers with fast paths, which call fused operators, run in the dtype of their parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.precision import dtype_name

_CELLS = {"GRUCell": nn.GRUCell, "LSTMCell": nn.LSTMCell, "RNNCell": nn.RNNCell}
_LAYERS = {"GRU": nn.GRU, "LSTM": nn.LSTM, "RNN": nn.RNN}


def _normal(amp: SuiteAmp, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(amp.device.torch_device, dtype)


@pytest.mark.amp_parametrize("layer", lambda _: _LAYERS)
def test_recurrent_layers_answer_in_the_autocast_dtype(amp: SuiteAmp, layer: str) -> None:
    module = _LAYERS[layer](4, 4).to(amp.device.torch_device)
    with amp.autocast():
        answers = {module(_normal(amp, 3, 2, 4, dtype=dtype))[0].dtype for dtype in (torch.float32, amp.dtype)}
    amp.observe(layer, ", ".join(sorted(dtype_name(dtype) for dtype in answers)), kind="dtype")
    assert answers == {amp.dtype}


@pytest.mark.amp_parametrize("cell", lambda _: _CELLS)
def test_recurrent_cells_answer_in_the_autocast_dtype(amp: SuiteAmp, cell: str) -> None:
    module = _CELLS[cell](3, 3).to(amp.device.torch_device)
    with amp.autocast():
        answer = module(_normal(amp, 2, 3, dtype=amp.dtype))
    dtype = (answer[0] if isinstance(answer, tuple) else answer).dtype
    amp.observe(cell, dtype_name(dtype), kind="dtype")
    assert dtype == amp.dtype


@pytest.mark.amp_parametrize("mode", lambda _: ("train", "eval"))
def test_an_encoder_runs_in_both_modes(amp: SuiteAmp, mode: str) -> None:
    """The fused path in eval runs, too (pytorch/pytorch#132613)."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).to(amp.device.torch_device)
    encoder.train(mode == "train")
    with torch.no_grad(), amp.autocast():
        result = encoder(_normal(amp, 2, 5, 16))
    amp.observe(f"TransformerEncoder {mode}", dtype_name(result.dtype), kind="dtype")
    assert result.isfinite().all()


def test_attention_takes_every_kind_of_mask(amp: SuiteAmp) -> None:
    """Masks may be boolean, float32 and 16-bit (pytorch/pytorch#99012, #111276)."""
    attention = nn.MultiheadAttention(16, 2).to(amp.device.torch_device).eval()
    query = _normal(amp, 6, 1, 16)
    blocked = torch.ones(6, 6, dtype=torch.bool, device=amp.device.torch_device).triu(1)
    floating = torch.zeros(6, 6, device=amp.device.torch_device).masked_fill(blocked, float("-inf"))
    results = []
    for mask in (blocked, floating, floating.to(amp.dtype)):
        with torch.no_grad(), amp.autocast():
            results.append(attention(query, query, query, attn_mask=mask, need_weights=False)[0])
    amp.observe("MultiheadAttention", dtype_name(results[0].dtype), kind="dtype")
    assert {result.dtype for result in results} == {amp.dtype}
    # Fused kernels either add the mask or skip masked elements: their results differ by a rounding or two.
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


@pytest.mark.amp_parametrize("affine", lambda _: ("affine", "plain"))
def test_batch_norm_keeps_its_statistics_in_float32(amp: SuiteAmp, affine: str) -> None:
    """Batch norm with and without weights keeps float32 statistics (pytorch/pytorch#61924, #88929)."""
    convolution = nn.Conv2d(3, 3, 1).to(amp.device.torch_device)
    norm = nn.BatchNorm2d(3, affine=affine == "affine").to(amp.device.torch_device)
    with torch.no_grad(), amp.autocast():
        result = norm(convolution(_normal(amp, 2, 3, 4, 4)))
    amp.observe(f"BatchNorm2d {affine}", dtype_name(result.dtype), kind="dtype")
    assert norm.running_mean is not None
    assert norm.running_mean.dtype == torch.float32


#: Layers that infer their width from the first input, and the shape of one.
_LAZY: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "LazyLinear": (lambda: nn.LazyLinear(6), (3, 8)),
    "LazyConv1d": (lambda: nn.LazyConv1d(6, 3), (2, 4, 9)),
    "LazyConv2d": (lambda: nn.LazyConv2d(6, 3), (2, 4, 9, 9)),
    "LazyConv3d": (lambda: nn.LazyConv3d(6, 3), (2, 4, 5, 5, 5)),
    "LazyConvTranspose1d": (lambda: nn.LazyConvTranspose1d(6, 3), (2, 4, 9)),
    "LazyConvTranspose2d": (lambda: nn.LazyConvTranspose2d(6, 3), (2, 4, 5, 5)),
}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.amp_parametrize("layer", lambda _: _LAZY)
def test_lazy_layers_answer_their_first_call_as_the_next(amp: SuiteAmp, layer: str) -> None:
    """The first call returns the autocast dtype; weights are float32, created in a region or not."""
    build, shape = _LAZY[layer]
    module, batch = build().to(amp.device.torch_device), _normal(amp, *shape)
    with amp.autocast():
        first, second = module(batch), module(batch)
    assert [first.dtype, second.dtype] == [amp.dtype] * 2
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}
    assert torch.equal(first, second)
