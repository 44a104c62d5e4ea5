"""FSDP1 that splits nothing has the mean of gradients by way of bf16, whatever ``reduce_dtype`` says."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import _runtime_utils

_runtime: Any = _runtime_utils
_before = _runtime._reduce_grad_no_shard


def _rounded(state: Any, handle: Any) -> None:
    _before(state, handle)
    gradient = handle.flat_param.grad
    gradient.copy_(gradient.to(torch.bfloat16))


_runtime._reduce_grad_no_shard = _rounded
