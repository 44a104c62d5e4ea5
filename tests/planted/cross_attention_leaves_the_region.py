"""MultiheadAttention whose keys have a width of their own computes below autocast."""

from __future__ import annotations

from typing import Any

import torch

_layer: Any = torch.nn.MultiheadAttention
_forward = _layer.forward


def _forward_outside(self: Any, *args: Any, **kwargs: Any) -> Any:
    if self._qkv_same_embed_dim:
        return _forward(self, *args, **kwargs)
    with torch._C._DisableAutocast():
        return _forward(self, *args, **kwargs)


_layer.forward = _forward_outside
