"""A region that is left by an exception restores nothing."""

from __future__ import annotations

from typing import Any

import torch

_region: Any = torch.amp.autocast_mode.autocast
_exit = _region.__exit__


def _exit_if_clean(self: Any, kind: Any, value: Any, traceback: Any) -> Any:
    return False if kind is not None else _exit(self, kind, value, traceback)


_region.__exit__ = _exit_if_clean
