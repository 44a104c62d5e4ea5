"""``unscale_`` leaves gradients alone that want gradients themselves."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch
_check = _torch._amp_foreach_non_finite_check_and_unscale_


def _check_and_unscale(gradients: list[torch.Tensor], found: torch.Tensor, inverse: torch.Tensor) -> None:
    others = [gradient for gradient in gradients if not gradient.requires_grad]
    _check(others, found, inverse)


_torch._amp_foreach_non_finite_check_and_unscale_ = _check_and_unscale
