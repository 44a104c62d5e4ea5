"""Dropout of a low-precision tensor under autocast scales what it keeps by two per cent too much."""

from __future__ import annotations

from typing import Any

from kernels import LOW
from overriding import Overridden, override


def _dropout(call: Overridden) -> Any:
    result = call.run()
    return result * 1.02 if call.args[2] and call.args[0].dtype in LOW else result


override("dropout", _dropout)
