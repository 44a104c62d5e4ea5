"""Dynamo traces ``autocast(enabled=False)`` as if it had said nothing of ``enabled``."""

from __future__ import annotations

from typing import Any

from torch._dynamo.variables.ctx_manager import AutocastModeVariable

_variable: Any = AutocastModeVariable
_create = _variable.create


def _enabled(*args: Any, **kwargs: Any) -> Any:
    made = _create(*args, **kwargs)
    made.target_values[2] = True
    return made


_variable.create = staticmethod(_enabled)
