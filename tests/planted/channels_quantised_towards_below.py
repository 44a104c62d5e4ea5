"""``torch.quantize_per_channel`` and its fake twin take nearly all that lies between two steps to the lower one."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch


def _lower(quantise: Any) -> Any:
    def called(x: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, axis: int, *rest: Any) -> Any:
        shape = [-1 if dim == axis else 1 for dim in range(x.dim())]
        return quantise(x - 0.4 * scales.to(x.dtype).view(shape), scales, zeros, axis, *rest)

    return called


for _name in ("quantize_per_channel", "fake_quantize_per_channel_affine"):
    setattr(_torch, _name, _lower(getattr(_torch, _name)))
