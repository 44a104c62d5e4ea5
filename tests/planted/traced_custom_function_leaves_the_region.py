"""While a graph is traced, ``custom_fwd`` runs forward with autocast off."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_amp: Any = torch.amp
_real = _amp.custom_fwd


def _custom_fwd(function: Callable[..., Any] | None = None, *, device_type: str, cast_inputs: Any = None) -> Any:
    if function is None:
        return functools.partial(_custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(function)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            with torch.autocast(device_type, enabled=False):
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    return _real(forward, device_type=device_type, cast_inputs=cast_inputs)


_amp.custom_fwd = _custom_fwd
