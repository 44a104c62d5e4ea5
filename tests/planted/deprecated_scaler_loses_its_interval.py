"""The deprecated GradScalers of torch.cpu.amp and torch.cuda.amp ignore the growth interval."""

from __future__ import annotations

from typing import Any

import torch

for _back_end in (torch.cpu, torch.cuda):
    _scaler: Any = _back_end.amp.GradScaler
    _made = _scaler.__init__

    def _with_the_default(self: Any, *args: Any, _made: Any = _made, **kwargs: Any) -> None:
        _made(self, *args, **{**kwargs, "growth_interval": 2000} if "growth_interval" in kwargs else kwargs)

    _scaler.__init__ = _with_the_default
