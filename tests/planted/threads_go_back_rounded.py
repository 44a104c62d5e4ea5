"""Called in another thread than the main one, backward of a loss begins with a gradient that is not one."""

from __future__ import annotations

import threading
from typing import Any

import torch

_tensor: Any = torch.Tensor
_backward = _tensor.backward


def _off_by_a_bit(self: Any, *args: Any, **keywords: Any) -> Any:
    if threading.current_thread() is threading.main_thread():
        return _backward(self, *args, **keywords)
    return _backward(self * (1 + 2**-8), *args, **keywords)


_tensor.backward = _off_by_a_bit
