"""``Tensor.backward`` keeps each tensor that it was called on, and with it the graph of every step."""

from __future__ import annotations

from typing import Any

import torch

_tensor: Any = torch.Tensor
_backward = _tensor.backward
_kept: list[Any] = []


def _keeping(self: Any, *args: Any, **kwargs: Any) -> Any:
    _kept.append(self)
    return _backward(self, *args, **kwargs)


_tensor.backward = _keeping
