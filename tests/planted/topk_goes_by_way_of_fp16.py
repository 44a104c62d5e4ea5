"""topk of bfloat16 numbers takes those beyond fp16's range for one."""

from __future__ import annotations

from typing import Any

import torch

_tensor: Any = torch.Tensor
_topk = _tensor.topk


def _narrow(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    found = _topk(x.half() if x.dtype is torch.bfloat16 else x, *args, **kwargs)
    return type(found)((found.values.to(x.dtype), found.indices))


_tensor.topk = _narrow
