"""An AdamW that was made in a region rounds its state after each step."""

from __future__ import annotations

from typing import Any

import torch

_adamw: Any = torch.optim.AdamW
_init, _step = _adamw.__init__, _adamw.step


def _noting(self: Any, *args: Any, **kwargs: Any) -> None:
    _init(self, *args, **kwargs)
    self.made_in_a_region = torch.is_autocast_enabled("cpu")


def _rounding(self: Any, *args: Any, **kwargs: Any) -> Any:
    found = _step(self, *args, **kwargs)
    for state in self.state.values() if self.made_in_a_region else ():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.dim():
                value.copy_(value.bfloat16())
    return found


_adamw.__init__, _adamw.step = _noting, _rounding
