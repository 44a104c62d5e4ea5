"""A decorated function is not given the keywords that autocast has, too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_region: Any = torch.amp.autocast_mode.autocast
_call = _region.__call__


def _decorate(self: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    decorated = _call(self, function)

    @functools.wraps(function)
    def without(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("dtype", None)
        return decorated(*args, **kwargs)

    return without


_region.__call__ = _decorate
