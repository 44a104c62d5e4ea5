"""Float64 formulas of the sums, means and gradients of EmbeddingBag on a CPU.

See aten/src/ATen/native/EmbeddingBag.cpp.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_amp.numerics.oracle.colliding_updates import accumulate_sequentially
from pytest_amp.numerics.oracle.operation import LOW, Operation

_SUM, _MEAN = 0, 1
FORWARD = ("aten::_embedding_bag", "aten::_embedding_bag_forward_only")


def forward(operation: Operation) -> list[Any]:
    """Compute the forward pass: round the sum of every bag, and a mean once more after the division.

    FBGEMM's kernel, which runs without a padding index, rounds sums halfway between two bf16 values away from zero.
    """
    dtype, mode = operation.returned[0], operation.argument(4, "mode") or _SUM
    results = operation.overload(*operation.args, **operation.kwargs)
    if dtype not in LOW or mode not in (_SUM, _MEAN):
        return operation.once()
    padding = operation.argument(8, "padding_idx")
    counts = _counts(operation, padding).clamp_min(1) if mode == _MEAN else torch.ones_like(results[0][:, 0])
    total = results[0] * counts[:, None]
    away = dtype == torch.bfloat16 and (padding is None or padding < 0)
    total = _away_from_zero(total) if away and operation.rounds else operation.low(total, dtype)
    return operation.finished([total / counts[:, None], *results[1:]])


def _counts(operation: Operation, padding: int | None) -> Tensor:
    """Count the indices of each bag that are not the padding index."""
    weight, indices, offsets = operation.args[:3]
    ends = (
        offsets[1:]
        if operation.argument(7, "include_last_offset")
        else torch.cat([offsets[1:], offsets.new_tensor([len(indices)])])
    )
    counted = (indices != (-1 if padding is None else padding)).to(weight.dtype).cumsum(0)
    before = torch.cat([counted.new_zeros(1), counted])
    return before[ends] - before[offsets[: len(ends)]]


def _away_from_zero(values: Tensor) -> Tensor:
    """Round ``values`` to bf16, ties away from zero."""
    half = 0x8000
    return ((values.to(torch.float32).view(torch.int32) + half) & -2 * half).view(torch.float32).to(values.dtype)


def backward(operation: Operation) -> list[Any]:
    """Compute the backward pass: multiply each row by its bag's scale, and add the rows in the order of sorted indices.

    See _embedding_bag_dense_backward_cpu_sum_mean and, for the mode max, which uses index_add,
    _embedding_bag_dense_backward_cpu_max.
    """
    grad, indices, offsets, _, sizes, largest, count, by_frequency, mode, sparse, weights = operation.args[:11]
    padding = operation.argument(11, "padding_idx")
    dtype = operation.returned[0]
    if dtype not in LOW or sparse or not operation.rounds:
        return operation.once()
    columns = torch.arange(grad.shape[1], device=grad.device)
    result = grad.new_zeros(count, grad.shape[1])
    if mode not in (_SUM, _MEAN):
        some = sizes.nonzero().flatten()
        targets, values = largest[some] * grad.shape[1] + columns, grad[some]
    else:
        indices, order = indices.sort()
        bags = torch.searchsorted(offsets, order, right=True) - 1
        scale = torch.ones_like(indices, dtype=grad.dtype) if weights is None else weights[order]
        if by_frequency:
            scale = scale / _frequencies(operation)[indices]
        scale = scale / sizes[bags].clamp_min(1) if mode == _MEAN else scale
        counted = indices != (-1 if padding is None else padding)
        share = operation.low(scale, dtype)[:, None] * grad[bags]
        values = operation.low(share, dtype)[counted]
        targets = indices[counted, None] * grad.shape[1] + columns
    return operation.finished(
        [accumulate_sequentially(operation, result.flatten(), targets.flatten(), values.flatten()).view_as(result)]
    )


def _frequencies(operation: Operation) -> Tensor:
    """Infer the divisor of each row: up to torch 2.13 a CPU uses another row's count (pytorch/pytorch#190063)."""
    place = 7  # of scale_grad_by_freq
    plain = operation.overload(*operation.args[:place], False, *operation.args[place + 1 :])  # noqa: FBT003
    scaled = operation.overload(*operation.args)
    counts: Tensor = plain.abs().sum(1) / scaled.abs().sum(1)
    return counts.nan_to_num(1.0).round()
