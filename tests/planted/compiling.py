"""What planted defects break torch.compile with: their own function around each compiled one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from on_device import DEVICE

_real: Any = torch.compile

#: Takes the compiled function and the arguments of ``torch.compile``; returns what is called in its place.
Wrap = Callable[[Callable[..., Any], dict[str, Any]], Callable[..., Any]]


def wrap_compiled(wrap: Wrap) -> None:
    """Call what ``wrap`` returns in place of each compiled function and of each compiled module's forward."""

    def compile_wrapped(model: Any = None, **keywords: Any) -> Any:
        if model is None:
            return functools.partial(compile_wrapped, **keywords)
        compiled: Any = _real(model, **keywords)
        if isinstance(model, torch.nn.Module):
            compiled.forward = functools.wraps(compiled.forward)(wrap(compiled.forward, keywords))
            return compiled
        return functools.wraps(compiled)(wrap(compiled, keywords))

    _torch: Any = torch
    _torch.compile = compile_wrapped


def replace_compile(function: Callable[..., Any]) -> None:
    """Call ``function`` in place of ``torch.compile``, with that as its first argument."""
    _torch: Any = torch
    _torch.compile = functools.partial(function, _real)


def mapped(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """``value`` with ``change`` applied to its floating tensors."""
    if isinstance(value, torch.Tensor):
        return change(value) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: mapped(change, each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(change, each) for each in value)
    return value


def in_the_first(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
    """``function`` in the region in which it was called first; a ``Wrap``."""
    states: list[tuple[bool, torch.dtype]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        states.append((torch.is_autocast_enabled(DEVICE), torch.get_autocast_dtype(DEVICE)))
        enabled, dtype = states[0]
        with torch.autocast(DEVICE, dtype, enabled=enabled):
            return function(*args, **kwargs)

    return call
