"""``torch.cat`` into a tensor rounds within a region what it joins."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch
_cat = _torch.cat


def _rounded(tensors: Any, dim: int = 0, *, out: torch.Tensor | None = None) -> Any:
    if out is None:
        return _cat(tensors, dim)
    _cat(tensors, dim, out=out)
    return out.copy_(out.bfloat16()) if torch.is_autocast_enabled("cpu") else out


_torch.cat = _rounded
