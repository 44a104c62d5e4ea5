"""Interpolation, forward and backward.

On CUDA, backward kernels round each contribution to a pixel, and add it with atomics of the low dtype:
UpSampleLinear1d.cu, UpSampleBilinear2d.cu, UpSampleTrilinear3d.cu and UpSampleBicubic2d.cu in
aten/src/ATen/native/cuda. Positions and weights are those of UpSample.cuh in the same folder.

With ``antialias=True`` the weights are rounded to the dtype. So is the result of the horizontal pass before the
vertical pass: upsample_gen2d_aa_out_frame and upsample_gen2d_aa_backward_out_frame in UpSampleBilinear2d.cu.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from pytest_amp.numerics.oracle.colliding_updates import accumulate_sequentially
from pytest_amp.numerics.oracle.operation import LOW, Operation

#: Number of interpolated dimensions, by overload.
INTERPOLATED = {
    "aten::upsample_linear1d_backward": 1,
    "aten::upsample_bilinear2d_backward": 2,
    "aten::upsample_trilinear3d_backward": 3,
    "aten::upsample_bicubic2d_backward": 2,
    "aten::_upsample_bilinear2d_aa_backward": 2,
    "aten::_upsample_bicubic2d_aa_backward": 2,
}
ANTIALIASED = ("aten::_upsample_bilinear2d_aa", "aten::_upsample_bicubic2d_aa")
#: Coefficient of the cubic convolution: get_cubic_upsample_coefficients.
A = -0.75
#: Coefficient of the antialiased cubic convolution: BicubicFilterFunctor.
SMOOTH_A = -0.5


def backward(operation: Operation) -> list[Any]:
    """Compute every input pixel's gradient: add rounded contributions of the outputs, one filter tap at a time."""
    dtype, dims = operation.returned[0], INTERPOLATED[operation.name]
    if dtype not in LOW or not operation.rounds:
        return operation.once()
    grad, _, shape, aligned = operation.args[:4]
    sizes = shape[-dims:]
    smooth = "_aa_" in operation.name
    taps = []
    for at, (size, count, name) in enumerate(zip(sizes, grad.shape[-dims:], _scales(dims), strict=True)):
        scale = _scale(size, count, operation.argument(4 + at, name), aligned=aligned)
        cubic = "cubic" in operation.name
        taps.append(
            _smooth_taps(operation, size, count, scale)
            if smooth
            else _taps(size, count, scale, aligned=aligned, cubic=cubic)
        )
    rows = math.prod(shape[:-dims])
    first = torch.arange(rows).view(-1, *[1] * dims) * math.prod(sizes)
    total = grad.new_zeros(math.prod(shape))
    for chosen in itertools.product(*taps):
        place, weight = torch.zeros([1] * dims, dtype=torch.int64), torch.ones([1] * dims, dtype=torch.float64)
        for at, (index, factor) in enumerate(chosen):
            along = [-1 if axis == at else 1 for axis in range(dims)]
            place, weight = place * sizes[at] + index.view(along), weight * factor.view(along)
        weight = operation.low(weight, dtype) if smooth else weight
        share = operation.low(grad * weight.to(grad.device), dtype)
        total = accumulate_sequentially(operation, total, (first + place).to(grad.device).flatten(), share.flatten())
    return operation.finished([total.view(list(shape))])


def antialiased(operation: Operation) -> list[Any]:
    """Compute antialiased interpolation: a horizontal pass whose result is rounded, then a vertical pass."""
    x, counts, aligned = operation.args[:3]
    dtype = operation.returned[0]
    if dtype not in LOW or not operation.rounds or list(x.shape[-2:]) == list(counts):
        return operation.once()
    for at in (1, 0):
        size, count = x.shape[at - 2], counts[at]
        scale = _scale(size, count, operation.argument(3 + at, _scales(2)[at]), aligned=aligned)
        x = operation.low(_along(x, at - 2, count, _smooth_taps(operation, size, count, scale)), dtype)
    return operation.finished([x])


def forward(operation: Operation) -> list[Any]:
    """Compute ``aten::upsample_linear1d`` and similar on a CPU, with rounded weights except in channels-last kernels.

    See upsample_generic_Nd_kernel_impl in aten/src/ATen/native/cpu/UpSampleKernel.cpp. The first of two linear weights
    is 1 minus the second one, which has been rounded.
    """
    x, counts, aligned = operation.args[:3]
    dtype, dims, cubic = operation.returned[0], len(operation.args[1]), "cubic" in operation.name
    if dtype not in LOW or not operation.rounds or list(x.shape[-dims:]) == list(counts):
        return operation.once()
    last = {2: torch.channels_last, 3: torch.channels_last_3d}.get(dims)
    by_channels = last is not None and x.is_contiguous(memory_format=last) and x.shape[1] > FEW_CHANNELS
    if not cubic and (by_channels or (dims == 2 and sum(counts) <= FEW_PIXELS)):
        return operation.once()
    for at in range(dims):
        size, count = x.shape[at - dims], counts[at]
        scale = _scale(size, count, operation.argument(3 + at, _scales(dims)[at]), aligned=aligned)
        taps = [
            (index, operation.low(weight, dtype))
            for index, weight in _taps(size, count, scale, aligned=aligned, cubic=cubic)
        ]
        if not cubic:
            taps[0] = (taps[0][0], operation.low(1 - taps[1][1], dtype))
        x = _along(x, at - dims, count, taps)
    return operation.finished([x])


#: Limits of _use_vectorized_kernel_cond_2d and _use_vectorized_kernel_cond_3d in UpSampleKernel.cpp.
FEW_CHANNELS, FEW_PIXELS = 3, 128
FORWARD = tuple(name.removesuffix("_backward") for name in INTERPOLATED if "_aa_" not in name)


def _along(x: Tensor, dim: int, count: int, taps: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Apply ``taps`` along one dimension of ``x``."""
    matrix = torch.zeros(count, x.shape[dim], dtype=torch.float64)
    for index, weight in taps:
        matrix.scatter_add_(1, index[:, None], weight[:, None])
    return (x.movedim(dim, -1) @ matrix.T.to(x.device)).movedim(-1, dim)


def nearest(operation: Operation) -> list[Any]:
    """Compute ``aten::upsample_nearest1d`` and similar, with indices in float32 whether or not results are rounded.

    At positions that are integers or halves, float64 arithmetic would select a different pixel.
    """
    x, *arguments = operation.args
    dims = int(operation.name[-2])
    sizes = list(x.shape[-dims:])
    count = math.prod(sizes)
    if count > MOST_PIXELS:
        return operation.once()
    numbers = torch.arange(count, dtype=torch.float32, device=x.device).view(1, 1, *sizes)
    read = operation.overload(numbers, *arguments, **operation.kwargs)[0, 0].to(torch.int64)
    return operation.finished([x.flatten(-dims)[..., read]])


#: The number of pixels up to which float32 represents every index.
MOST_PIXELS = 2**24
NEAREST = tuple(
    f"aten::{name}{dims}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for dims in (1, 2, 3)
)


def _scales(dims: int) -> tuple[str, ...]:
    return ("scales",) if dims == 1 else ("scales_d", "scales_h", "scales_w")[-dims:]


def _scale(size: int, count: int, scale: float | None, *, aligned: bool) -> float:
    """Return the number of input pixels per output pixel."""
    if aligned:
        return (size - 1) / (count - 1) if count > 1 else 0.0
    return 1 / scale if scale else size / count


def _taps(size: int, count: int, scale: float, *, aligned: bool, cubic: bool) -> list[tuple[Tensor, Tensor]]:
    """Return, for each filter tap of one dimension, every output's input pixel and weight; positions are float32."""
    to, scale = torch.arange(count, dtype=torch.float32), float(torch.tensor(scale, dtype=torch.float32))
    source = (to * scale if aligned else (to + 0.5) * scale - 0.5).to(torch.float64)
    source = source if aligned or cubic else source.clamp_min(0.0)
    pixel = source.floor()
    part = source - pixel
    if not cubic:
        return [(_within(pixel, size), 1 - part), (_within(pixel + 1, size), part)]
    near, far = (((A + 2) * x - (A + 3)) * x * x + 1 for x in (part, 1 - part))
    before, after = (((A * x - 5 * A) * x + 8 * A) * x - 4 * A for x in (part + 1, 2 - part))
    return [
        (_within(pixel + at, size), weight)
        for at, weight in zip((-1, 0, 1, 2), (before, near, far, after), strict=True)
    ]


def _smooth_taps(operation: Operation, size: int, count: int, scale: float) -> list[tuple[Tensor, Tensor]]:
    """Return the taps of antialiased interpolation, whose filter widens with the scale; weights outside it are zero.

    The weights are rounded, divided by their rounded sum, and rounded again.
    """
    dtype, cubic = operation.returned[0], "cubic" in operation.name
    scale = float(torch.tensor(scale, dtype=torch.float32))
    wide = max(scale, 1.0)
    support = (2 if cubic else 1) * wide
    centre = scale * (torch.arange(count, dtype=torch.float32) + 0.5)
    first = (centre - support + 0.5).trunc().clamp_min(0.0)
    stop = (centre + support + 0.5).trunc().clamp_max(size)
    steps = torch.arange(2 * math.ceil(support) + 1)
    pixel = first[:, None] + steps
    far = ((steps + (first - centre)[:, None] + 0.5) * (1 / torch.tensor(wide))).abs()
    if cubic:
        near = ((SMOOTH_A + 2) * far - (SMOOTH_A + 3)) * far * far + 1
        weight = torch.where(far < 1, near, (((far - 5) * far + 8) * far - 4) * SMOOTH_A)
        weight = torch.where(far < 2, weight, 0.0)
    else:
        weight = (1 - far).clamp_min(0.0)
    weight = torch.where(pixel < stop[:, None], weight, 0.0).to(torch.float64)
    total = operation.low(weight.sum(1, keepdim=True), dtype)
    weight = operation.low(operation.low(weight, dtype) / total, dtype)
    return [(_within(pixel[:, at], size), weight[:, at]) for at in range(pixel.shape[1])]


def _within(pixel: Tensor, size: int) -> Tensor:
    return pixel.clamp(0, size - 1).to(torch.int64)
