"""FSDP1 reduces gradients in the dtype of its parameters, whatever ``reduce_dtype`` says."""

from __future__ import annotations

from typing import Any

from torch.distributed import fsdp

_policy: Any = fsdp.MixedPrecision
_made = _policy.__init__


def _changed(self: Any, *args: Any, **kwargs: Any) -> None:
    _made(self, *args, **kwargs)
    if self.param_dtype is not None:
        object.__setattr__(self, "reduce_dtype", self.param_dtype)


_policy.__init__ = _changed
