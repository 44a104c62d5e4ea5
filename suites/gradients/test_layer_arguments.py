"""Recurrent, attention and decoder layers with every argument and mask: outputs and gradients agree with float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from pytest_amp.amp import SuiteAmp
from pytest_amp.numerics import relative_error

from .expectations import expect_near

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """Constructor of a layer, the shapes of its inputs, and its call; ``evaluated`` if it has dropout."""

    build: Callable[[], nn.Module]
    shapes: tuple[Shape, ...]
    call: Callable[..., Any] = lambda layer, *inputs: layer(*inputs)
    evaluated: bool = False


def _packed(layer: nn.Module, x: Tensor) -> Tensor:
    """Run the layer on packed sequences of lengths 7, 4 and 2."""
    packed = pack_padded_sequence(x, torch.tensor([7, 4, 2]))
    padded: Tensor = pad_packed_sequence(layer(packed)[0])[0]
    return padded


def _unsorted(layer: nn.Module, x: Tensor, state: Tensor) -> Any:
    """Run the layer on lengths 4, 7 and 2, from a state: the output and the last states, in the order of the rows."""
    packed = pack_padded_sequence(x, torch.tensor([4, 7, 2]), enforce_sorted=False)
    states = (state, state * 0.5) if isinstance(layer, nn.LSTM) else state
    output, last = layer(packed, states)
    return pad_packed_sequence(output)[0], last


def _away_from_zero(inputs: int, units: int, *, bidirectional: bool = False) -> nn.Module:
    """Return a layer whose units are clearly on or off: near a kink, rounding would switch a whole gradient."""
    layer = nn.RNN(inputs, units, nonlinearity="relu", bidirectional=bidirectional)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.startswith("weight_hh"):
                parameter.mul_(4 / units)
            if name.startswith("bias_ih"):
                parameter.copy_(4.0 * (1 - 2 * (torch.arange(units) % 2)))
    return layer


def _with_state(layer: nn.Module, x: Tensor, state: Tensor) -> Any:
    return layer(x, (state, state * 0.5) if isinstance(layer, (nn.LSTM, nn.LSTMCell)) else state)


def _padded(x: Tensor, batch: int) -> Tensor:
    """Return a padding mask of the last two places of each row but the first."""
    mask = torch.zeros(batch, x.shape[0], dtype=torch.bool, device=x.device)
    mask[1:, -2:] = True
    return mask


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)


def _later(rows: int, columns: int, x: Tensor) -> Tensor:
    return torch.ones(rows, columns, dtype=torch.bool, device=x.device).triu(1)


def _attended(*, weights: bool, per_head: bool = False, floating: bool = False) -> Callable[..., Any]:
    def call(layer: nn.Module, x: Tensor, memory: Tensor) -> Any:
        padding = _padded(memory, memory.shape[1])
        return layer(
            x, memory, memory, key_padding_mask=_additive(padding, x.dtype) if floating else padding,
            need_weights=weights, average_attn_weights=not per_head,
        )  # fmt: skip

    return call


def _decoded(layer: nn.Module, x: Tensor, memory: Tensor) -> Any:
    return layer(
        x, memory, tgt_mask=_later(len(x), len(x), x), memory_mask=_later(len(x), len(memory), x),
        memory_key_padding_mask=_padded(memory, memory.shape[1]),
    )  # fmt: skip


_ROWS, _STATE = (7, 3, 12), (4, 3, 16)
#: cuDNN has kernels of its own for batches of 8 and units of 32.
_TILES = (7, 8, 32)
_TEXT = ((5, 3, 16), (7, 3, 16))

LAYERS = {
    **{
        f"{kind.__name__}, {name}": Layer(lambda kind=kind, k=keywords: kind(12, 16, **k), (_ROWS,))  # type: ignore[misc]
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
        for name, keywords in {
            "both ways": {"bidirectional": True},
            "two layers": {"num_layers": 2},
            "batch first": {"batch_first": True},
            "no bias": {"bias": False},
        }.items()
    },
    **{
        f"{kind.__name__}, from a state": Layer(
            lambda kind=kind: kind(12, 16, num_layers=2, bidirectional=True), (_ROWS, _STATE), _with_state  # type: ignore[misc]
        )
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
    },
    **{
        f"{kind.__name__}, packed": Layer(lambda kind=kind: kind(12, 16, bidirectional=True), (_ROWS,), _packed)  # type: ignore[misc]
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
    },
    **{
        f"{kind.__name__}, packed in any order": Layer(lambda kind=kind: kind(12, 16), (_ROWS, (1, 3, 16)), _unsorted)  # type: ignore[misc]
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
    },
    **{
        kind.__name__: Layer(lambda kind=kind: kind(12, 16), ((3, 12), (3, 16)), _with_state)  # type: ignore[misc]
        for kind in (nn.LSTMCell, nn.GRUCell, nn.RNNCell)
    },
    "LSTM, projected": Layer(lambda: nn.LSTM(12, 16, proj_size=6), (_ROWS,)),
    "LSTM, projected both ways": Layer(lambda: nn.LSTM(12, 16, proj_size=6, bidirectional=True), (_ROWS,)),
    **{
        f"{kind.__name__}, both ways, of whole tiles": Layer(
            lambda kind=kind: kind(32, 32, bidirectional=True), (_TILES,)  # type: ignore[misc]
        )
        for kind in (nn.LSTM, nn.GRU, nn.RNN)
    },
    "RNN, relu": Layer(lambda: _away_from_zero(12, 16), (_ROWS,)),
    "RNN, relu, both ways, of whole tiles": Layer(lambda: _away_from_zero(32, 32, bidirectional=True), (_TILES,)),
    "LSTM, dropout in evaluation": Layer(lambda: nn.LSTM(12, 16, 2, dropout=0.5), (_ROWS,), evaluated=True),
    "attention, padded": Layer(lambda: nn.MultiheadAttention(16, 2), _TEXT, _attended(weights=False)),
    "attention, padded, weights": Layer(lambda: nn.MultiheadAttention(16, 2), _TEXT, _attended(weights=True)),
    "attention, padded, weights of heads": Layer(
        lambda: nn.MultiheadAttention(16, 2), _TEXT, _attended(weights=True, per_head=True)
    ),
    "attention, padded with numbers": Layer(
        lambda: nn.MultiheadAttention(16, 2), _TEXT, _attended(weights=False, floating=True)
    ),
    "attention, padded with numbers, weights": Layer(
        lambda: nn.MultiheadAttention(16, 2), _TEXT, _attended(weights=True, floating=True)
    ),
    "attention, bias_kv and zero_attn": Layer(
        lambda: nn.MultiheadAttention(16, 2, add_bias_kv=True, add_zero_attn=True), _TEXT, _attended(weights=True)
    ),
    # gelu, because near relu's kink rounding would switch a whole gradient.
    "decoder, masks": Layer(
        lambda: nn.TransformerDecoderLayer(16, 2, 24, dropout=0.0, activation="gelu"), _TEXT, _decoded
    ),
    "decoder, norm first, gelu": Layer(
        lambda: nn.TransformerDecoderLayer(16, 2, 24, dropout=0.0, norm_first=True, activation="gelu"), _TEXT, _decoded
    ),
    "transformer": Layer(lambda: nn.Transformer(16, 2, 1, 1, 24, dropout=0.0, activation="gelu"), (_TEXT[1], _TEXT[0])),
}  # fmt: skip


def tensors_of(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [tensor for part in result if part is not None for tensor in tensors_of(part)]


def _step(layer: nn.Module, inputs: list[Tensor], region: Any, call: Callable[..., Any]) -> dict[str, Tensor]:
    """Return results, and gradients of inputs and parameters, where all results have the same weight."""
    with region:
        results = tensors_of(call(layer, *inputs))
    weighed = [
        (
            x.to(torch.promote_types(x.dtype, torch.float32))
            * torch.linspace(-1, 1, x.numel(), device=x.device).view_as(x)
        ).sum()
        for x in results
    ]
    torch.autograd.backward(torch.stack(weighed).sum())
    named = {f"result.{index}": x.detach() for index, x in enumerate(results)}
    for name, tensor in [*((f"input.{i}", x) for i, x in enumerate(inputs)), *layer.named_parameters()]:
        assert tensor.grad is not None, f"{name} has no gradient"
        assert tensor.grad.dtype is tensor.dtype
        named[f"gradient of {name}"] = tensor.grad
    return named


#: In units of u. Seven steps, each of a product, a gate and a state; measured at most 7 (CPU, torch 2.13, both dtypes).
MOST = 12.0


@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:Support for mismatched key_padding_mask")
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.amp_parametrize("name", lambda _: LAYERS)
def test_layer_with_arguments(amp: SuiteAmp, name: str) -> None:
    layer, device = LAYERS[name], amp.device.torch_device
    dtypes: dict[str, torch.dtype] = {}

    def measured() -> dict[str, float]:
        module = layer.build().train(not layer.evaluated)
        exact = copy.deepcopy(module).double()
        values = [torch.randn(shape) / 2 for shape in layer.shapes]
        exact_values = [x.double().requires_grad_() for x in values]
        expected = _step(exact, exact_values, torch.autocast("cpu", enabled=False), layer.call)
        leaves = [x.to(device).requires_grad_() for x in values]
        actual = _step(module.to(device), leaves, amp.autocast(), layer.call)
        dtypes.update({key: x.dtype for key, x in actual.items()})
        # A tensor much smaller than similar ones, such as the gradient of keys' bias, has its error relative to those.
        sizes = {key: float(x.norm()) for key, x in expected.items()}
        floor = max(size for key, size in sizes.items() if key.startswith("gradient")) / 16
        return {
            key: relative_error(x, expected[key], scale=max(sizes[key], floor if key.startswith("gradient") else 0.0))
            for key, x in actual.items()
        }

    errors, over_seeds = amp.over_seeds(measured)
    allowed = MOST * amp.precision.u * amp.config.tolerance_scale
    expect_near(
        amp,
        f"layer.{name}",
        errors,
        dict.fromkeys(errors, allowed),
        over_seeds=over_seeds,
        measure=measured,
        dtypes=dtypes,
        exact="float64",
        before="float64 of the same weights, inputs and masks",
        likely="a mask, a state, a direction or a projection is forgotten under autocast",
    )
