"""Gradients are multiplied by an inverse of the scale that was rounded to bfloat16."""

from __future__ import annotations

from typing import Any

import torch

_check: Any = torch._amp_foreach_non_finite_check_and_unscale_
_torch: Any = torch


def _check_inexactly(gradients: Any, found_inf: Any, inverse_scale: Any) -> None:
    _check(gradients, found_inf, inverse_scale.bfloat16().float())


_torch._amp_foreach_non_finite_check_and_unscale_ = _check_inexactly
