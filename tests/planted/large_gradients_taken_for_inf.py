"""The check for inf takes what float16 cannot hold for one."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch
_original = _torch._amp_foreach_non_finite_check_and_unscale_


def _check(gradients: Any, found: Any, inverse: Any) -> None:
    if any(bool((gradient.abs() > 65504).any()) for gradient in gradients):
        found.fill_(1.0)
    _original(gradients, found, inverse)


_torch._amp_foreach_non_finite_check_and_unscale_ = _check
