"""ShardedGradScaler on the CPU counts clean steps and never grows."""

from __future__ import annotations

from typing import Any

from torch.distributed.fsdp import sharded_grad_scaler

_scaler: Any = sharded_grad_scaler.ShardedGradScaler


def _update(self: Any, found_inf: Any) -> None:
    if found_inf.item():
        self._scale *= self._backoff_factor
        self._growth_tracker.fill_(0)
    else:
        self._growth_tracker += 1


_scaler._amp_update_scale_cpu_ = _update
