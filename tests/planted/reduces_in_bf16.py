"""FSDP2 reduces gradients in bf16 where its policy asks for float32."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

_policy: Any = MixedPrecisionPolicy
_made = _policy.__init__


def _changed(self: Any, *args: Any, **kwargs: Any) -> None:
    _made(self, *args, **kwargs)
    if self.reduce_dtype is torch.float32:
        object.__setattr__(self, "reduce_dtype", torch.bfloat16)


_policy.__init__ = _changed
