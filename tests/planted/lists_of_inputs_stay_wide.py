"""FSDP1 casts the tensors among a module's inputs, and none that is in a list."""

from __future__ import annotations

from typing import Any

from torch.distributed.fsdp import _runtime_utils

_runtime: Any = _runtime_utils
_before = _runtime._cast_forward_inputs


def _tensors_alone(dtype: Any, *args: Any, **kwargs: Any) -> Any:
    cast, by_name = _before(dtype, *args, **kwargs)
    kept = tuple(old if isinstance(old, list) else new for old, new in zip(args, cast, strict=True))
    return kept, by_name


_runtime._cast_forward_inputs = _tensors_alone
