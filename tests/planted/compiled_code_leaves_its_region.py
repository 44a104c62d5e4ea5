"""A compiled function runs outside of the autocast region in which it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compiling import wrap_compiled
from overriding import outside_of_regions


def _outside(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
    outside: Callable[..., Any] = outside_of_regions(function)
    return outside


wrap_compiled(_outside)
