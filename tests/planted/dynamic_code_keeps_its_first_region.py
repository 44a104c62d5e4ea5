"""A function compiled for dynamic shapes runs in the region in which it was called first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compiling import in_the_first, wrap_compiled


def _first_if_dynamic(function: Callable[..., Any], keywords: dict[str, Any]) -> Callable[..., Any]:
    return in_the_first(function, keywords) if keywords.get("dynamic") else function


wrap_compiled(_first_if_dynamic)
