"""Large gradients are rounded to bf16 before they are unscaled."""

from __future__ import annotations

from typing import Any

import torch

_check: Any = torch._amp_foreach_non_finite_check_and_unscale_
_torch: Any = torch
LARGE = 1000


def _round_large_ones(gradients: Any, found_inf: Any, inverse_scale: Any) -> None:
    for gradient in gradients:
        if gradient.numel() > LARGE:
            gradient.copy_(gradient.to(torch.bfloat16))
    _check(gradients, found_inf, inverse_scale)


_torch._amp_foreach_non_finite_check_and_unscale_ = _round_large_ones
