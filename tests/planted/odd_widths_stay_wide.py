"""linear of a width that is no multiple of eight is not cast."""

from __future__ import annotations

from typing import Any

from overriding import Overridden, override


def _linear(call: Overridden) -> Any:
    return (call if call.args[1].shape[-1] % 8 else call.cast(call.low)).run()


override("linear", _linear)
