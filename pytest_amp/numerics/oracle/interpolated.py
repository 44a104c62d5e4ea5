"""What goes back through an interpolation on CUDA: shares are rounded, and added to a pixel with atomics of the dtype.

UpSampleLinear1d.cu, UpSampleBilinear2d.cu, UpSampleTrilinear3d.cu and UpSampleBicubic2d.cu in
aten/src/ATen/native/cuda; places and weights as in UpSample.cuh there.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from pytest_amp.numerics.oracle.meetings import in_turn
from pytest_amp.numerics.oracle.operation import LOW, Operation

#: By overload: the number of dimensions.
INTERPOLATED = {
    "aten::upsample_linear1d_backward": 1,
    "aten::upsample_bilinear2d_backward": 2,
    "aten::upsample_trilinear3d_backward": 3,
    "aten::upsample_bicubic2d_backward": 2,
}
#: Of the cubic convolution: get_cubic_upsample_coefficients.
A = -0.75


def backward(operation: Operation) -> list[Any]:
    """Each pixel's gradient from those of the results that it had a share in, tap by tap."""
    dtype, dims = operation.returned[0], INTERPOLATED[operation.name]
    if dtype not in LOW or not operation.rounds:
        return operation.once()
    grad, _, shape, aligned = operation.args[:4]
    cubic = "cubic" in operation.name
    own = shape[-dims:]
    taps = [
        _taps(size, count, operation.argument(4 + at, name), aligned=aligned, cubic=cubic)
        for at, (size, count, name) in enumerate(zip(own, grad.shape[-dims:], _scales(dims), strict=True))
    ]
    rows = math.prod(shape[:-dims])
    first = torch.arange(rows).view(-1, *[1] * dims) * math.prod(own)
    total = grad.new_zeros(math.prod(shape))
    for chosen in itertools.product(*taps):
        place, weight = torch.zeros([1] * dims, dtype=torch.int64), torch.ones([1] * dims, dtype=torch.float64)
        for at, (index, factor) in enumerate(chosen):
            along = [-1 if each == at else 1 for each in range(dims)]
            place, weight = place * own[at] + index.view(along), weight * factor.view(along)
        share = operation.low(grad * weight.to(grad.device), dtype)
        total = in_turn(operation, total, (first + place).to(grad.device).flatten(), share.flatten())
    return operation.finished([total.view(list(shape))])


def _scales(dims: int) -> tuple[str, ...]:
    return ("scales",) if dims == 1 else ("scales_d", "scales_h", "scales_w")[-dims:]


def _taps(size: int, count: int, scale: float | None, *, aligned: bool, cubic: bool) -> list[tuple[Tensor, Tensor]]:
    """For each tap of one dimension: the pixel that each result reads there, and its weight."""
    to = torch.arange(count, dtype=torch.float64)
    if aligned:
        source = to * ((size - 1) / (count - 1) if count > 1 else 0.0)
    else:
        source = (to + 0.5) * (1 / scale if scale else size / count) - 0.5
        source = source if cubic else source.clamp_min(0.0)
    pixel = source.floor()
    part = source - pixel
    if not cubic:
        return [(_within(pixel, size), 1 - part), (_within(pixel + 1, size), part)]
    near, far = (((A + 2) * x - (A + 3)) * x * x + 1 for x in (part, 1 - part))
    before, after = (((A * x - 5 * A) * x + 8 * A) * x - 4 * A for x in (part + 1, 2 - part))
    return [
        (_within(pixel + at, size), each) for at, each in zip((-1, 0, 1, 2), (before, near, far, after), strict=True)
    ]


def _within(pixel: Tensor, size: int) -> Tensor:
    return pixel.clamp(0, size - 1).to(torch.int64)
