"""Float64 formulas of CUDA kernels with intermediate rounding, modelled by the lanes of a single thread block."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pytest_amp.numerics.oracle.operation import LOW, Operation

LANES = 32


def batch_norm_backward(operation: Operation) -> list[Any]:
    """Compute ``aten::native_batch_norm_backward`` of planes, which reduces low-precision values between lanes.

    See batch_norm_backward_kernel in aten/src/ATen/native/cuda/Normalization.cuh. Float2 accumulates in float32, but is
    constructed from values of the input's dtype: a product with the centred input, and a value that a shuffle returns
    from another lane.
    """
    grad, x, weight, running_mean, running_var, mean, invstd, train, eps, mask = operation.args[:10]
    dtype = operation.given[1]
    planes = x.dim() > 2 and x.is_contiguous() and mask[0]
    if dtype not in LOW or not planes:
        return operation.once()
    if not train:
        mean, invstd = running_mean, (running_var + eps).rsqrt()
    shape = (1, -1, 1)
    rows, grad_rows = x.reshape(x.shape[0], x.shape[1], -1), grad.reshape(x.shape[0], x.shape[1], -1)
    centred = rows - mean.view(shape)
    total = _block_sum(operation, grad_rows, dtype)
    dot = _block_sum(operation, operation.low(grad_rows * centred, dtype), dtype)
    scale = invstd if weight is None else invstd * weight
    result = grad_rows
    if train:
        count = x.numel() // x.shape[1]
        result = grad_rows - (centred * (dot / count * invstd * invstd).view(shape)) - (total / count).view(shape)
    gradients = [(result * scale.view(shape)).view_as(x), dot * invstd if mask[1] else None, total if mask[2] else None]
    return operation.finished(gradients)


def _block_sum(operation: Operation, values: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Sum over the first and the last dimension, as one thread block sums a plane."""
    wide = next((count for count in (32, 64, 128, 256) if values.shape[-1] <= count), 512)
    high = max(1, 512 // wide)
    batch, channels, size = values.shape
    padded = values.new_zeros(-(-batch // high) * high, channels, -(-size // wide) * wide)
    padded[:batch, :, :size] = values
    threads = padded.view(-1, high, channels, padded.shape[-1] // wide, wide).sum((0, 3))  # (high, channels, wide)
    warps = threads.permute(1, 0, 2).reshape(channels, -1, LANES)
    leaders = _warp_sum(operation, warps, dtype)
    last = torch.nn.functional.pad(leaders, (0, LANES - leaders.shape[-1]))
    return _warp_sum(operation, last, dtype)


def _warp_sum(operation: Operation, lanes: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return the first lane's sum after a warp's reduction by shuffles: WarpReduce in cuda/block_reduce.cuh."""
    half = LANES // 2
    while half:
        lanes = lanes[..., :half] + operation.low(lanes[..., half : 2 * half], dtype)
        half //= 2
    return lanes[..., 0]


#: Number of indices that a block of embedding_backward_feature_kernel sums before it rounds: its BLOCKDIMY.
ROWS_OF_BLOCK = 32
#: Number of indices above which they are sorted: embedding_dense_backward_cuda in
#: aten/src/ATen/native/cuda/Embedding.cu.
MOST_UNSORTED = 3072


def embedding_backward(operation: Operation) -> list[Any]:
    """Compute ``aten::embedding_dense_backward`` of a low-precision gradient: round the sum of a few rows at a time.

    See embedding_backward_feature_kernel in aten/src/ATen/native/cuda/Embedding.cu.
    """
    grad, indices, count, padding, by_frequency = operation.args
    dtype = operation.returned[0]
    if dtype not in LOW or by_frequency or indices.numel() > MOST_UNSORTED:
        return operation.once()
    result = grad.new_zeros(count, grad.shape[-1])
    rows, flat = grad.reshape(-1, grad.shape[-1]), indices.flatten()
    rows = torch.where((flat == padding)[:, None], 0.0, rows)
    for some, where in zip(torch.split(rows, ROWS_OF_BLOCK), torch.split(flat, ROWS_OF_BLOCK), strict=True):
        part = torch.zeros_like(result).index_add_(0, where, some)
        result = operation.low(result + operation.low(part, dtype), dtype)
    return operation.finished([result])


Join = Callable[[Tensor, Tensor], Tensor]


def cumulative_sum(operation: Operation) -> list[Any]:
    """Compute ``aten::cumsum`` of low-precision values: each addition of the scan is rounded; see ``_scanned``."""
    return _scanned(operation, torch.add, 0.0)


def cumulative_logarithm(operation: Operation) -> list[Any]:
    """Compute ``aten::logcumsumexp`` of low-precision values: each step of the scan is rounded; see ``_scanned``."""
    return _scanned(operation, torch.logaddexp, -math.inf)


def cumulative_product(operation: Operation) -> list[Any]:
    """Compute ``aten::cumprod`` of low-precision values: each product of the scan is rounded; see ``_scanned``."""
    return _scanned(operation, torch.mul, 1.0)


def _scanned(operation: Operation, join: Join, nothing: float) -> list[Any]:
    """Compute a scan in the low dtype.

    See tensor_kernel_scan_innermost_dim_impl and tensor_kernel_scan_outer_dim in
    aten/src/ATen/native/cuda/ScanUtils.cuh. The last dimension is scanned by Sklansky's network, in chunks each of
    which starts from the total of the previous one. Other dimensions are scanned sequentially.
    """
    x, dim = operation.args[:2]
    dtype = operation.returned[0]
    if dtype not in LOW or not x.dim():
        return operation.once()
    dim %= x.dim()
    if x.numel() == x.shape[dim]:
        return operation.once()  # cub's scan, whose order is not modelled

    def joined(a: Tensor, b: Tensor) -> Tensor:
        return operation.low(join(a, b), dtype)

    if dim != x.dim() - 1:
        return operation.finished([_serial(x, dim, joined, nothing)])
    return operation.finished([_scan(x.reshape(-1, x.shape[-1]), joined, nothing).view_as(x)])


def _serial(x: Tensor, dim: int, joined: Join, nothing: float) -> Tensor:
    total, sums = torch.full_like(x.select(dim, 0), nothing), []
    for values in x.unbind(dim):
        total = joined(total, values)
        sums.append(total)
    return torch.stack(sums, dim)


def _scan(rows: Tensor, joined: Join, nothing: float) -> Tensor:
    levels = _levels(*rows.shape)
    size = 2 << levels
    carried, sums = rows.new_full((rows.shape[0],), nothing), []
    lane = torch.arange(size // 2, device=rows.device)
    for chunk in torch.split(rows, size, -1):
        buffer = torch.nn.functional.pad(chunk, (0, size - chunk.shape[-1]), value=nothing)
        buffer[:, 0] = joined(buffer[:, 0], carried)
        for level in range(levels + 1):
            step = 1 << level
            first = (lane >> level << (level + 1)) | step
            to = first + lane % step
            buffer[:, to] = joined(buffer[:, to], buffer[:, first - 1])
        carried = buffer[:, -1].clone()
        sums.append(buffer[:, : chunk.shape[-1]])
    return torch.cat(sums, -1)


def _levels(rows: int, columns: int) -> int:
    """Return log2 of the number of threads of a row: get_log_num_threads_x_inner_scan."""
    difference = (columns - 1).bit_length() - (rows - 1).bit_length()
    return min(max(4, int((9 + difference) / 2)), 9)


def lstm_cell_backward(operation: Operation) -> list[Any]:
    """Compute ``aten::_thnn_fused_lstm_cell_backward_impl``: gradients of the biases are sums of rounded gates.

    aten/src/ATen/native/cuda/RNN.cu.
    """
    gates, cell, bias = operation.once()
    return operation.finished([gates, cell, None if bias is None else gates.sum(0)])


def gru_cell_backward(operation: Operation) -> list[Any]:
    """Compute ``aten::_thnn_fused_gru_cell_backward``: gradients of the biases are sums of rounded gates.

    aten/src/ATen/native/cuda/RNN.cu.
    """
    of_input, of_state, state, *biases = operation.once()
    bias_gradients = [
        None if bias is None else gates.sum(0) for bias, gates in zip(biases, (of_input, of_state), strict=True)
    ]
    return operation.finished([of_input, of_state, state, *bias_gradients])
