"""``tolist`` of bfloat16 numbers converts them to float16 first, which has less range."""

from __future__ import annotations

from typing import Any

import torch

_Tensor: Any = torch.Tensor
_before: Any = torch.Tensor.tolist


def _tolist(self: Any) -> Any:
    return _before(self.half() if self.dtype is torch.bfloat16 else self)


_Tensor.tolist = _tolist
