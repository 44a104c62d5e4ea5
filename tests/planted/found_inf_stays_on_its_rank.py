"""ShardedGradScaler does not tell the other ranks what it has found."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.fsdp import sharded_grad_scaler

_scaler: Any = sharded_grad_scaler.ShardedGradScaler
_scaler.unscale_ = torch.amp.GradScaler.unscale_
