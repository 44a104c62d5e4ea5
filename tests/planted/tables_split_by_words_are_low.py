"""An embedding whose table is split by words is put together in bf16 precision."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor._ops import _embedding_ops

_ops: Any = _embedding_ops
_before = _ops._MaskPartial._reduce_value


def _rounded(self: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    return _before(self, tensor.to(torch.bfloat16).to(tensor.dtype), *args, **kwargs)


_ops._MaskPartial._reduce_value = _rounded
