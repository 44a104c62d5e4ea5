"""``torch.cpu.amp.autocast`` as a decorator forgets the dtype that it was given."""

from __future__ import annotations

import functools
from typing import Any

import torch

_amp: Any = torch.cpu.amp


def _decorate(_: Any, function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return function(*args, **kwargs)

    return call


_amp.autocast.__call__ = _decorate
