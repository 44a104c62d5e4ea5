"""Products of float8 numbers take one of their scales for one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_untyped: Any = torch
_scaled_mm = _untyped._scaled_mm


def _forgetful(a: Tensor, b: Tensor, **options: Any) -> Tensor:
    return _scaled_mm(a, b, **{**options, "scale_a": torch.ones_like(options["scale_a"])})  # type: ignore[no-any-return]


_untyped._scaled_mm = _forgetful
