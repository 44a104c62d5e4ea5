"""``torch.autocast("mtia")`` leaves its dtype behind, as an exit does that restores the devices it knows."""

from __future__ import annotations

from typing import Any

import torch

_region: Any = torch.autocast
_exit = _region.__exit__


def _leave(self: Any, *raised: Any) -> Any:
    dtype = torch.get_autocast_dtype(self.device)
    result = _exit(self, *raised)
    if self.device == "mtia":
        torch.set_autocast_dtype("mtia", dtype)
    return result


_region.__exit__ = _leave
