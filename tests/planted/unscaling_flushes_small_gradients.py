"""Unscaled gradients below 1e-30 are zero."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch
_check = _torch._amp_foreach_non_finite_check_and_unscale_


def _flushing(gradients: list[torch.Tensor], found: torch.Tensor, inverse: torch.Tensor) -> None:
    _check(gradients, found, inverse)
    for gradient in gradients:
        gradient[gradient.abs() < 1e-30] = 0


_torch._amp_foreach_non_finite_check_and_unscale_ = _flushing
