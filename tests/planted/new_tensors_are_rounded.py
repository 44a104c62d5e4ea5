"""Within a region ``torch.full`` and ``torch.arange`` make numbers of the autocast dtype, in float32 tensors."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch


def _rounding(before: Any) -> Any:
    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        made: torch.Tensor = before(*args, **kwargs)
        if torch.is_autocast_enabled("cpu") and made.dtype is torch.float32:
            made = made.to(torch.get_autocast_dtype("cpu")).float()
        return made

    return make


_torch.full, _torch.arange = _rounding(torch.full), _rounding(torch.arange)
