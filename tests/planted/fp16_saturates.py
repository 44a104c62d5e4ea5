"""What is too large for fp16 becomes 65504 in place of infinity, so that no overflow is ever seen."""

from __future__ import annotations

from typing import Any

import torch

_before: Any = torch.Tensor.to


def _to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    to_half = torch.float16 in args or kwargs.get("dtype") is torch.float16
    clamped = self.clamp(-65504, 65504) if to_half and self.is_floating_point() else self
    return _before(clamped, *args, **kwargs)  # type: ignore[no-any-return]


torch.Tensor.to = _to  # type: ignore[method-assign,assignment]
