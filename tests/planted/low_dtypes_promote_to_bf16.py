"""``torch.promote_types`` of the two low dtypes is bfloat16: whoever asks it what to compute in loses three bits."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch
_promote: Any = torch.promote_types
_LOW = {torch.bfloat16, torch.float16}


def _to_bf16(first: torch.dtype, second: torch.dtype) -> Any:
    return torch.bfloat16 if {first, second} == _LOW else _promote(first, second)


_torch.promote_types = _to_bf16
