"""Fused attention in float64, with the roundings of kernels that do not store the probabilities."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pytest_amp.data_files.releases import holds_in, release_of
from pytest_amp.numerics.oracle.operation import Operation

#: Keys, and in the backward pass queries, of a block: flash_attention_kernel_impl in
#: aten/src/ATen/native/cpu/FlashAttentionKernel.cpp.
KEYS = 512


def _queries(count: int) -> int:
    return 256 if count >= 768 else 64 if count >= 192 else 32


@dataclass(frozen=True)
class Attention:
    """Queries, keys and values of shape (batch, heads, tokens, width), and the mask of their scores.

    Keys and values may have fewer heads than queries (grouped-query attention): a group of neighbouring query heads
    then shares one head.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float

    def scores(self) -> Tensor:
        """Return the scaled scores, with -inf for masked keys."""
        scores = self.query @ expand_heads(self.key, self.query).mT * self.scale
        if self.mask is not None:
            hidden = scores.masked_fill(~self.mask, -math.inf) if self.mask.dtype == torch.bool else scores + self.mask
            scores = hidden
        if self.causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        return scores


def expand_heads(tensor: Tensor, query: Tensor) -> Tensor:
    """Repeat the heads of keys or values, if queries share them, to one head for each head of ``query``."""
    group = query.shape[1] // tensor.shape[1]
    return tensor if group == 1 else tensor.repeat_interleave(group, 1)


def _scale(scale: float | None, query: Tensor) -> float:
    return query.shape[-1] ** -0.5 if scale is None else scale


def approximate_exponential(scores: Tensor) -> Tensor:
    """Compute ``exp`` as vectorized code does since torch 2.8, by a polynomial with an error of at most 1e-4.

    See fexp_u20 in aten/src/ATen/cpu/vec/vec512/vec512_float.h and vec256/vec256_float.h, after Malossi et al. 2015:
    the bits of a float32, read as an integer, are its logarithm up to a correction of the fraction.
    """
    exponent = scores * math.log2(math.e)
    fraction = exponent - exponent.floor()
    correction = (fraction * -0.079204240219773236 - 0.22433836478672356) * fraction + 0.30354260500649682
    exponent = exponent - (correction * fraction + 0.00010703434948458272)
    bits = (exponent.clamp_min(-126) * 2.0**23 + 127 * 2.0**23).to(torch.float32).to(torch.int32)
    return torch.where(scores.isinf(), 0.0, bits.view(torch.float32).to(scores.dtype))


#: Number of float32 elements of a vector, by the CPU's capability.
LANES = {"AVX512": 16, "AVX2": 8}


def cpu_exponential(scores: Tensor) -> Tensor:
    """Compute ``exp`` of a block of scores as the CPU kernel does: approximate, except for the vector remainder."""
    lanes = LANES.get(torch.backends.cpu.get_cpu_capability())
    if lanes is None or not holds_in(release_of(torch.__version__), since="2.8", until=None):
        return scores.exp()
    whole = scores.shape[-1] // lanes * lanes
    return torch.cat([approximate_exponential(scores[..., :whole]), scores[..., whole:].exp()], -1)


Exponential = Callable[[Tensor], Tensor]


def forward(
    operation: Operation,
    attention: Attention,
    *,
    keys: int = KEYS,
    backwards: bool = False,
    exponential: Exponential = torch.exp,
) -> tuple[Tensor, Tensor]:
    """Compute the result and the logarithm of the sum of exponentials.

    Blocks of ``keys`` are processed from first to last, or from last to first with ``backwards``. Exponentials relative
    to the largest score so far are rounded before the product with the values. Their sum is not rounded, and the
    quotient is rounded at the end.
    """
    dtype = operation.given[0]
    scores = attention.scores()
    largest = torch.full(scores.shape[:-1], -math.inf, dtype=scores.dtype, device=scores.device)
    total, result = torch.zeros_like(largest), torch.zeros_like(attention.query[..., : attention.value.shape[-1]])
    if result.shape[-1] != attention.value.shape[-1]:
        result = scores.new_zeros(*scores.shape[:-1], attention.value.shape[-1])
    value = expand_heads(attention.value, attention.query)
    blocks = list(zip(torch.split(scores, keys, -1), torch.split(value, keys, -2), strict=True))
    for block, values in reversed(blocks) if backwards else blocks:
        before, largest = largest, torch.maximum(largest, block.amax(-1))
        finite = largest.clamp_min(torch.finfo(largest.dtype).min)  # a row whose keys are all masked so far
        weights = exponential(block - finite[..., None])
        shrunk = (before - finite).exp()
        total = total * shrunk + weights.sum(-1)
        result = result * shrunk[..., None] + operation.low(weights, dtype) @ values
    divided = torch.where(total[..., None] > 0, result / total[..., None], result)
    return divided, largest + total.log()


def backward(operation: Operation, attention: Attention, grad: Tensor, out: Tensor, sums: Tensor) -> list[Tensor]:
    """Compute the gradients of query, key and value.

    Probabilities are recomputed from the saved sums. They and the scores' gradients are rounded before their products.
    Between blocks, the three gradients are stored in the low dtype, and so are, between heads, the gradients of keys
    and values that several query heads share.
    """
    dtype = operation.given[1]
    weights = torch.nan_to_num((attention.scores() - sums[..., None]).exp())
    products = grad @ expand_heads(attention.value, attention.query).mT
    scored = weights * (products - (grad * out).sum(-1, keepdim=True))
    weights, scored = operation.low(weights, dtype), operation.low(scored, dtype)
    query, key, value = (torch.zeros_like(tensor) for tensor in (attention.query, attention.key, attention.value))
    tokens, group = _queries(query.shape[-2]), query.shape[1] // key.shape[1]
    for head, first in itertools.product(range(group), range(0, query.shape[-2], tokens)):
        q = slice(None), slice(head, None, group), slice(first, first + tokens)
        for start in range(0, key.shape[-2], KEYS):
            k = slice(start, start + KEYS)
            if attention.causal and start >= first + tokens:
                break
            part = scored[q][..., k]
            value[..., k, :] = operation.low(value[..., k, :] + weights[q][..., k].mT @ grad[q], dtype)
            query[q] = operation.low(query[q] + part @ attention.key[..., k, :] * attention.scale, dtype)
            key[..., k, :] = operation.low(key[..., k, :] + part.mT @ attention.query[q] * attention.scale, dtype)
    return [query, key, value]


def cpu_forward(operation: Operation) -> list[Any]:
    """Compute ``aten::_scaled_dot_product_flash_attention_for_cpu``."""
    query, key, value = operation.args[:3]
    causal = bool(operation.argument(4, "is_causal"))
    scale = _scale(operation.kwargs.get("scale"), query)
    attention = Attention(query, key, value, operation.kwargs.get("attn_mask"), causal, scale)
    exponential = cpu_exponential if operation.rounds else torch.exp
    return operation.finished([*forward(operation, attention, exponential=exponential)])


def cpu_backward(operation: Operation) -> list[Any]:
    """Compute ``aten::_scaled_dot_product_flash_attention_for_cpu_backward``."""
    grad, query, key, value, out, sums = operation.args[:6]
    causal = bool(operation.argument(7, "is_causal"))
    scale = _scale(operation.kwargs.get("scale"), query)
    attention = Attention(query, key, value, operation.kwargs.get("attn_mask"), causal, scale)
    return operation.finished([*backward(operation, attention, grad, out, sums)])
