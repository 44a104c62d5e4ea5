"""The non-finite check looks at the first of several gradients."""

from __future__ import annotations

from typing import Any

import torch

_check: Any = torch._amp_foreach_non_finite_check_and_unscale_
_torch: Any = torch


def _check_the_first(gradients: Any, found_inf: Any, inverse_scale: Any) -> None:
    _check(gradients[:1], found_inf, inverse_scale)
    for gradient in gradients[1:]:
        gradient.mul_(inverse_scale)


_torch._amp_foreach_non_finite_check_and_unscale_ = _check_the_first
