"""Ways to break autocast temporarily, in this process."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pytest_amp.cases import map_tensors
from pytest_amp.devices import Device
from pytest_amp.devices.cpu import CpuDevice

Replacement = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class Replaced(TorchFunctionMode):
    """Mode that calls ``replacement(original, args, kwargs)`` for each torch function of one name."""

    def __init__(self, name: str, replacement: Replacement) -> None:
        super().__init__()
        self.name, self.replacement = name, replacement

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == self.name:
            return self.replacement(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class BrokenCpu(CpuDevice):
    """CPU on which one function misbehaves within autocast regions only."""

    def __init__(self, name: str, replacement: Replacement) -> None:
        self.broken = name, replacement

    @contextlib.contextmanager
    def autocast(self, dtype: torch.dtype, *, enabled: bool = True, cache_enabled: bool = True) -> Iterator[None]:
        with super().autocast(dtype, enabled=enabled, cache_enabled=cache_enabled), Replaced(*self.broken):
            yield


def in_low_precision(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function with its floating-point arguments in the autocast dtype."""
    dtype = torch.get_autocast_dtype("cpu")

    def cast(x: Tensor) -> Tensor:
        return x.to(dtype) if x.is_floating_point() else x

    with torch.autocast("cpu", enabled=False):
        return func(*map_tensors(cast, tuple(args)), **map_tensors(cast, kwargs))


def with_gradient(change: Callable[[Tensor], Tensor]) -> Replacement:
    """Return a replacement of a function whose result has another gradient."""

    def replacement(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = func(*args, **kwargs)
        if output.requires_grad:
            output.register_hook(change)
        return output

    return replacement


def broken(name: str, replacement: Replacement) -> Device:
    """Return a CPU whose ``name`` is replaced."""
    return BrokenCpu(name, replacement)


Change = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


@contextlib.contextmanager
def kernel(name: str, change: Change) -> Iterator[None]:
    """Replace the CPU kernel of an overload by ``change(original, args, kwargs)`` inside the block."""
    untyped: Any = torch.library
    packet, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, packet), overload or "default")
    if not hasattr(untyped, "get_kernel"):
        pytest.skip("this torch has no get_kernel")
    original = untyped.get_kernel(function, "CPU")
    library = untyped.Library("aten", "IMPL")

    def changed(keys: Any, *args: Any, **kwargs: Any) -> Any:
        return change(lambda *a, **k: original.call_boxed(keys, *a, **k), args, kwargs)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a kernel already exists
        library.impl(name, changed, "CPU", with_keyset=True)
    try:
        yield
    finally:
        library._destroy()
