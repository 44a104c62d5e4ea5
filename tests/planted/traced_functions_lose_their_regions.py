"""A region within a custom autograd function is traced as a disabled one."""

from __future__ import annotations

from typing import Any

from torch._dynamo.variables import higher_order_ops
from torch._dynamo.variables.ctx_manager import AutocastModeVariable

_variable: Any = AutocastModeVariable
_apply: Any = higher_order_ops.AutogradFunctionApplyVariable
_create, _traced = _variable.create, _apply.call_function
_within: list[bool] = []


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    _within.append(True)
    try:
        return _traced(self, *args, **kwargs)
    finally:
        _within.pop()


def _disabled(*args: Any, **kwargs: Any) -> Any:
    made = _create(*args, **kwargs)
    if _within:
        made.target_values[2] = False
    return made


_variable.create = staticmethod(_disabled)
_apply.call_function = _call
