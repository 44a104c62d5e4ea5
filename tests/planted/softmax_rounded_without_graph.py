"""Under no_grad in a region softmax goes through the low dtype, and answers in its argument's."""

from __future__ import annotations

from typing import Any

import torch
from on_device import DEVICE
from torch.nn import functional

_functional: Any = functional
_softmax = _functional.softmax


def _rounded(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if torch.is_grad_enabled() or not torch.is_autocast_enabled(DEVICE):
        return _softmax(x, *args, **kwargs)  # type: ignore[no-any-return]
    low = torch.get_autocast_dtype(DEVICE)
    return _softmax(x.to(low), *args, **kwargs).to(low).to(x.dtype)  # type: ignore[no-any-return]


_functional.softmax = _rounded
