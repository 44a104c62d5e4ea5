"""A region that is left under no_grad or inference_mode stays on."""

from __future__ import annotations

from typing import Any

import torch

_region: Any = torch.autocast
_exit = _region.__exit__


def _exit_and_stay(self: Any, *raised: Any) -> Any:
    result = _exit(self, *raised)
    if not torch.is_grad_enabled() and self._enabled:
        torch.set_autocast_enabled(self.device, True)
    return result


_region.__exit__ = _exit_and_stay
