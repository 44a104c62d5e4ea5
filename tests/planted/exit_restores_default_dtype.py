"""A region that ends sets the device's autocast dtype to bfloat16, whatever it was."""

from __future__ import annotations

from typing import Any

import torch

_region: Any = torch.amp.autocast_mode.autocast
_exit = _region.__exit__


def _exit_to_the_default(self: Any, *args: Any) -> Any:
    answer = _exit(self, *args)
    torch.set_autocast_dtype(self.device, torch.bfloat16)
    return answer


_region.__exit__ = _exit_to_the_default
