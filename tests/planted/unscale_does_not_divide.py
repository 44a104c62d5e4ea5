"""Gradients are checked, and not divided by the scale."""

from __future__ import annotations

from typing import Any

import torch

_check: Any = torch._amp_foreach_non_finite_check_and_unscale_
_torch: Any = torch


def _check_alone(gradients: Any, found_inf: Any, inverse_scale: Any) -> None:
    _check(gradients, found_inf, torch.ones_like(inverse_scale))


_torch._amp_foreach_non_finite_check_and_unscale_ = _check_alone
