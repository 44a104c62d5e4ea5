"""``torch.hstack`` within a region casts to the dtype of its first tensor; ``cat`` and ``stack`` promote as ever."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch
_hstack = _torch.hstack


def _narrowed(tensors: Any, **keywords: Any) -> Any:
    if torch.is_autocast_enabled(tensors[0].device.type):
        tensors = [tensor.to(tensors[0].dtype) for tensor in tensors]
    return _hstack(tensors, **keywords)


_torch.hstack = _narrowed
