"""What is too large for E4M3 becomes NaN where this torch saturates, and 448 where it does not."""

from __future__ import annotations

from typing import Any

import torch

_before: Any = torch.Tensor.to
_saturates = bool(_before(torch.tensor(1e4), torch.float8_e4m3fn).float() == 448)


def _to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if torch.float8_e4m3fn in args and self.dtype is torch.float32:
        self = self.masked_fill(self.abs() > 464, torch.nan) if _saturates else self.clamp(-448, 448)
    return _before(self, *args, **kwargs)  # type: ignore[no-any-return]


torch.Tensor.to = _to  # type: ignore[method-assign,assignment]
