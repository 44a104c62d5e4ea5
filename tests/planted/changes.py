"""Changes that planted defects make to gradients and to compiled functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.planted.kernels import DEVICE

#: torch's own, whose methods have no types.
Function: Any = torch.autograd.Function

_compile: Any = torch.compile

#: Takes the compiled function and the arguments of ``torch.compile``; returns the function to call in its place.
Wrap = Callable[[Callable[..., Any], dict[str, Any]], Callable[..., Any]]


class _Changed(Function):  # type: ignore[misc]
    """The identity, whose gradient is changed in the backward pass."""

    @staticmethod
    def forward(context: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        context.change = change
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return context.change(gradient), None


def with_gradient(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return ``x`` with ``change`` applied to its gradient."""
    changed: Tensor = _Changed.apply(x, change)
    return changed


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``x`` rounded to ``dtype``, in its own dtype."""
    return x.to(dtype).to(x.dtype)


def after_accumulation(change: Callable[[Any], None]) -> None:
    """Call ``change`` with each trained parameter of a module that has run, after a gradient was added to it."""

    def hook(module: torch.nn.Module, _inputs: Any) -> None:
        for parameter in module.parameters(recurse=False):
            untyped: Any = parameter
            if parameter.requires_grad and not getattr(parameter, "is_hooked", False):
                untyped.register_post_accumulate_grad_hook(change)
                untyped.is_hooked = True

    torch.nn.modules.module.register_module_forward_pre_hook(hook)


def wrap_compiled(wrap: Wrap) -> None:
    """Call what ``wrap`` returns in place of each compiled function and of each compiled module's forward."""

    def compile_wrapped(model: Any = None, **keywords: Any) -> Any:
        if model is None:
            return functools.partial(compile_wrapped, **keywords)
        compiled: Any = _compile(model, **keywords)
        if isinstance(model, torch.nn.Module):
            compiled.forward = functools.wraps(compiled.forward)(wrap(compiled.forward, keywords))
            return compiled
        return functools.wraps(compiled)(wrap(compiled, keywords))

    _torch: Any = torch
    _torch.compile = compile_wrapped


def replace_compile(function: Callable[..., Any]) -> None:
    """Call ``function`` in place of ``torch.compile``, which it gets as its first argument."""
    _torch: Any = torch
    _torch.compile = functools.partial(function, _compile)


def mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return ``value`` with ``change`` applied to its floating tensors."""
    if isinstance(value, Tensor):
        return change(value) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: mapped(change, element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(change, element) for element in value)
    return value


def in_the_first(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
    """Run ``function`` in the region of its first call; a ``Wrap``."""
    states: list[tuple[bool, torch.dtype]] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        states.append((torch.is_autocast_enabled(DEVICE), torch.get_autocast_dtype(DEVICE)))
        enabled, dtype = states[0]
        with torch.autocast(DEVICE, dtype, enabled=enabled):
            return function(*args, **kwargs)

    return call
