"""A region that is left by KeyboardInterrupt or GeneratorExit stays on."""

from __future__ import annotations

from typing import Any

import torch

_autocast: Any = torch.amp.autocast_mode.autocast
_exit: Any = _autocast.__exit__


def _exit_for_exceptions(self: Any, kind: Any = None, value: Any = None, traceback: Any = None) -> Any:
    if kind in (KeyboardInterrupt, GeneratorExit):
        return False
    return _exit(self, kind, value, traceback)


_autocast.__exit__ = _exit_for_exceptions
