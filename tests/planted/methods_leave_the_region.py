"""``Tensor.matmul``, ``Tensor.baddbmm`` and ``torch.linalg.multi_dot`` of more than three leave the region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_tensor: Any = torch.Tensor
_linalg: Any = torch.linalg


def _outside(before: Any, when: Callable[..., bool] = lambda *_: True) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(
            "cpu", enabled=torch.is_autocast_enabled("cpu") and not when(*args), dtype=torch.get_autocast_dtype("cpu")
        ):
            return before(*args, **kwargs)

    return run


_tensor.matmul, _tensor.baddbmm = _outside(_tensor.matmul), _outside(_tensor.baddbmm)
_linalg.multi_dot = _outside(_linalg.multi_dot, lambda matrices, *_: len(matrices) > 3)
