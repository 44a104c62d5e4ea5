"""Gradients in channels_last are unscaled, and not looked at."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch
_check = _torch._amp_foreach_non_finite_check_and_unscale_


def _check_and_unscale(gradients: list[torch.Tensor], found: torch.Tensor, inverse: torch.Tensor) -> None:
    last = [g for g in gradients if g.dim() == 4 and g.is_contiguous(memory_format=torch.channels_last)]
    _check(last, torch.zeros_like(found), inverse)
    _check([gradient for gradient in gradients if not any(gradient is each for each in last)], found, inverse)


_torch._amp_foreach_non_finite_check_and_unscale_ = _check_and_unscale
