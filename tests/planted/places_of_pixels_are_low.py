"""Bilinear interpolation of 16-bit images computes in their dtype where a result lies."""

from __future__ import annotations

import torch
from kernels import LOW, replace_kernel
from torch import Tensor


def _weights(x: Tensor, size: int, count: int, scale: float | None, *, aligned: bool) -> Tensor:
    """What each of ``count`` results takes of each pixel."""
    step = (size - 1) / max(count - 1, 1) if aligned else 1 / scale if scale else size / count
    to = torch.arange(count, dtype=torch.float64)
    place = (to * step if aligned else (to + 0.5) * step - 0.5).clamp(0, size - 1)
    place = place.to(x.dtype).to(torch.float64) if x.dtype in LOW else place
    return (1 - (place[:, None] - torch.arange(size)).abs()).clamp_min(0).to(x.device)


def _bilinear(
    x: Tensor, size: list[int], aligned: bool, high: float | None = None, wide: float | None = None
) -> Tensor:
    rows = _weights(x, x.shape[-2], size[0], high, aligned=aligned)
    row = _weights(x, x.shape[-1], size[1], wide, aligned=aligned)
    return (rows @ x.double() @ row.T).to(x.dtype)


replace_kernel("upsample_bilinear2d", _bilinear)
