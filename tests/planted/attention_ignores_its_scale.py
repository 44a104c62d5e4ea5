"""scaled_dot_product_attention under autocast divides by the root of the width, whatever scale it is given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from overriding import Overridden, override


def _attention(call: Overridden) -> Any:
    kwargs = {name: value for name, value in call.kwargs.items() if name != "scale"}
    return replace(call, kwargs=kwargs).cast(call.low).run()


override("scaled_dot_product_attention", _attention)
