"""FSDP2 casts the inputs that are given by position, and leaves those given by keyword as they are."""

from __future__ import annotations

from typing import Any

from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

_state: Any = FSDPState
_before = _state._pre_forward


def _by_position(self: Any, module: Any, args: Any, kwargs: Any) -> Any:
    cast, _ = _before(self, module, args, kwargs)
    return cast, kwargs


_state._pre_forward = _by_position
