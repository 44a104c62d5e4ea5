"""``unscale_`` launches a kernel for each gradient."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch
_check = _torch._amp_foreach_non_finite_check_and_unscale_


def _one_by_one(gradients: list[torch.Tensor], found: torch.Tensor, inverse: torch.Tensor) -> None:
    for gradient in gradients:
        _check([gradient], found, inverse)


_torch._amp_foreach_non_finite_check_and_unscale_ = _one_by_one
