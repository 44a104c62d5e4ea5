"""CUDA's fused attention in float64: flash, memory-efficient and cuDNN, which do not store the probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pytest_amp.numerics.oracle.attention import Attention, expand_heads, forward
from pytest_amp.numerics.oracle.operation import Operation

#: Number of keys in a block, for heads of width up to 64 and for wider heads. Exponentials are rounded relative to the
#: largest score of a block. Sources: run_mha_fwd_hdim64 and similar functions of the flash-attention library, which
#: iterates from the last block to the first; kKeysPerBlock of AttentionKernel in
#: aten/src/ATen/native/transformers/cuda/mem_eff_attention. cuDNN 9.19's was measured (H200, torch 2.11: 0.999 of the
#: elements in bf16 over 200 keys, 0.83 with another block).
FLASH_KEYS = 128, 64
EFFICIENT_KEYS = 64, 128
CUDNN_KEYS = 128, 128
#: The memory-efficient kernel pads the logarithms of its sums to a multiple of this many queries.
ROWS = 32


def _attention(operation: Operation, place: int, bias: Tensor | None, *, causal: bool) -> Attention:
    """Return the queries, keys and values, starting at argument ``place``, with shared heads of keys repeated."""
    query, key, value = operation.args[place : place + 3]
    key, value = expand_heads(key, query), expand_heads(value, query)
    scale = operation.kwargs.get("scale")
    return Attention(query, key, value, bias, causal, query.shape[-1] ** -0.5 if scale is None else scale)


def _keys(sizes: tuple[int, int], attention: Attention) -> int:
    return sizes[attention.query.shape[-1] > 64]


def _without_dropout(operation: Operation, place: int) -> None:
    if operation.argument(place, "dropout_p"):
        raise NotImplementedError(f"{operation.name} with dropout")


def _seeds(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros in place of the generator's state, which is unused without dropout."""
    return torch.zeros(shape, dtype=dtype, device=like.device)


def flash_forward(operation: Operation) -> list[Any]:
    """Compute ``aten::_scaled_dot_product_flash_attention``."""
    _without_dropout(operation, 3)
    attention = _attention(operation, 0, None, causal=bool(operation.argument(4, "is_causal")))
    out, sums = forward(operation, attention, keys=_keys(FLASH_KEYS, attention), backwards=True)
    lengths = attention.query.shape[-2], attention.key.shape[-2]
    state = _seeds(out, (2,), torch.uint64), _seeds(out, (), torch.uint64)
    return operation.finished([out, sums, None, None, *lengths, *state, out.new_zeros(0)])


def efficient_forward(operation: Operation) -> list[Any]:
    """Compute ``aten::_scaled_dot_product_efficient_attention``."""
    _without_dropout(operation, 5)
    attention = _attention(operation, 0, operation.args[3], causal=bool(operation.argument(6, "is_causal")))
    out, sums = forward(operation, attention, keys=_keys(EFFICIENT_KEYS, attention))
    rows = -(-sums.shape[-1] // ROWS) * ROWS
    sums = torch.nn.functional.pad(sums, (0, rows - sums.shape[-1]), value=math.inf)
    sums = sums if operation.args[4] else sums[..., :0]
    return operation.finished([out, sums, *(_seeds(out, (), torch.int64) for _ in range(2))])


def cudnn_forward(operation: Operation) -> list[Any]:
    """Compute ``aten::_scaled_dot_product_cudnn_attention``."""
    _without_dropout(operation, 5)
    attention = _attention(operation, 0, operation.args[3], causal=bool(operation.argument(6, "is_causal")))
    out, sums = forward(operation, attention, keys=_keys(CUDNN_KEYS, attention))
    lengths = attention.query.shape[-2], attention.key.shape[-2]
    state = [_seeds(out, (), torch.int64) for _ in range(2)]
    return operation.finished([out, sums[..., None], None, None, *lengths, *state, None])


@dataclass(frozen=True)
class Scored:
    """Rounded probabilities, for the product with the incoming gradient, and the unrounded gradient of the scores."""

    weights: Tensor
    gradient: Tensor


def scored(  # noqa: PLR0913  # what the backward pass is given
    operation: Operation, attention: Attention, grad: Tensor, out: Tensor, sums: Tensor, *, low: bool
) -> Scored:
    """Compute what the three kernels have in common; ``low`` selects rounded probabilities for the scores' gradient."""
    exact = torch.nan_to_num((attention.scores() - sums[..., None]).exp())
    weights = operation.low(exact, operation.given[1])
    difference = grad @ attention.value.mT - (grad * out).sum(-1, keepdim=True)
    return Scored(weights, (weights if low else exact) * difference)


def scaled_gradients(operation: Operation, attention: Attention, grad: Tensor, scored_rows: Scored) -> list[Tensor]:
    """Compute the gradients of memory-efficient and cuDNN attention: scale the scores' gradient, then round it."""
    scores = operation.low(scored_rows.gradient * attention.scale, operation.given[1])
    return [scores @ attention.key, scores.mT @ attention.query, scored_rows.weights.mT @ grad]


def gradients_to_scale(operation: Operation, attention: Attention, grad: Tensor, scored_rows: Scored) -> list[Tensor]:
    """Compute the gradients of flash attention: round the scores' gradient, then scale it."""
    scores = operation.low(scored_rows.gradient, operation.given[1])
    query, key = scores @ attention.key * attention.scale, scores.mT @ attention.query * attention.scale
    return [query, key, scored_rows.weights.mT @ grad]


def _shared(operation: Operation, gradients: list[Tensor], heads: int) -> list[Tensor]:
    """Sum the rounded gradients of keys and values over the heads of queries that share them."""
    query, *rest = gradients
    if query.shape[1] == heads:
        return gradients
    shared = []
    for gradient in rest:
        low = operation.low(gradient, operation.given[1])
        shared.append(low.reshape(low.shape[0], heads, -1, *low.shape[2:]).sum(2))
    return [query, *shared]


def flash_backward(operation: Operation) -> list[Any]:
    """Compute ``aten::_scaled_dot_product_flash_attention_backward``."""
    _without_dropout(operation, 10)
    grad, out, sums = operation.args[0], operation.args[4], operation.args[5]
    attention = _attention(operation, 1, None, causal=bool(operation.args[11]))
    both = scored(operation, attention, grad, out, sums, low=False)
    gradients = gradients_to_scale(operation, attention, grad, both)
    return operation.finished(_shared(operation, gradients, operation.args[2].shape[1]))


def efficient_backward(operation: Operation) -> list[Any]:
    """Compute ``aten::_scaled_dot_product_efficient_attention_backward``; a bias gets the scores' gradient."""
    _without_dropout(operation, 9)
    grad, bias, out, sums = operation.args[0], operation.args[4], operation.args[5], operation.args[6]
    attention = _attention(operation, 1, bias, causal=bool(operation.argument(11, "is_causal")))
    sums = sums[..., : out.shape[-2]]
    both = scored(operation, attention, grad, out, sums, low=True)
    of_bias = both.gradient if operation.args[10][3] and bias is not None else None
    return operation.finished([*scaled_gradients(operation, attention, grad, both), of_bias])


def cudnn_backward(operation: Operation) -> list[Any]:
    """Compute ``aten::_scaled_dot_product_cudnn_attention_backward``."""
    _without_dropout(operation, 13)
    grad, out, sums, bias = (operation.args[place] for place in (0, 4, 5, 8))
    attention = _attention(operation, 1, bias, causal=bool(operation.args[14]))
    both = scored(operation, attention, grad, out, sums[..., 0], low=False)
    gradients = scaled_gradients(operation, attention, grad, both)
    return operation.finished(_shared(operation, gradients, operation.args[2].shape[1]))
