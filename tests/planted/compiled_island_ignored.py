"""``autocast(enabled=False)`` inside a compiled function has no effect."""

from __future__ import annotations

from typing import Any

import torch.amp.autocast_mode

_module: Any = torch.amp.autocast_mode
_enter: Any = _module._enter_autocast
ENABLED = 2


def _enter_enabled(*values: Any) -> Any:
    return _enter(*values[:ENABLED], True, *values[ENABLED + 1 :])


_module._enter_autocast = _enter_enabled
_amp: Any = torch.amp
_amp._enter_autocast = _enter_enabled
