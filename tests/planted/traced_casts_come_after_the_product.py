"""While a graph is traced, a linear layer under autocast is computed in float32 and its result is cast."""

from __future__ import annotations

from typing import Any

from overriding import Overridden, override
from torch.fx.experimental.proxy_tensor import get_proxy_mode

_traced: Any = get_proxy_mode


def _cast_after(call: Overridden) -> Any:
    return call.run().to(call.low) if _traced() is not None else call.cast(call.low).run()


for _operator in ("linear", "addmm", "mm"):
    override(_operator, _cast_after)
