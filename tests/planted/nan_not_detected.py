"""The non-finite check sees inf, but not NaN."""

from __future__ import annotations

from typing import Any

import torch

_check: Any = torch._amp_foreach_non_finite_check_and_unscale_
_torch: Any = torch


def _check_inf_only(gradients: Any, found_inf: Any, inverse_scale: Any) -> None:
    for gradient in gradients:
        found_inf.fill_(max(found_inf.item(), float(gradient.isinf().any())))
        gradient.mul_(inverse_scale)


_torch._amp_foreach_non_finite_check_and_unscale_ = _check_inf_only
