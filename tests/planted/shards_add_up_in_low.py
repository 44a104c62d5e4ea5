"""FSDP2 keeps the sum of micro-batches in the parameters' dtype, and casts it when it is reduced."""

from __future__ import annotations

from typing import Any

from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam


def _as_it_is(_self: Any) -> None:
    return


_parameter: Any = FSDPParam
_parameter.to_accumulated_grad_if_needed = _as_it_is
