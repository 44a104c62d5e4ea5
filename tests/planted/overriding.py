"""What planted defects break autocast with: their own kernel in place of an operator's autocast kernel.

Imported before any test runs, by ``pytest -p``; nothing is undone.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

_untyped: Any = torch.library
_LIBRARY = _untyped.Library("aten", "IMPL")

DEVICE_TYPES = ("cpu", "cuda", "xpu", "mps", "mtia")


@dataclass(frozen=True)
class Overridden:
    """A call that has reached the autocast kernel of an operator."""

    operator: str
    device_type: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def low(self) -> torch.dtype:
        """The autocast dtype."""
        return torch.get_autocast_dtype(self.device_type)

    def floats(self) -> list[Tensor]:
        """The floating tensors among the arguments."""
        return [x for x in _tensors((self.args, tuple(self.kwargs.values()))) if x.is_floating_point()]

    def cast(self, *dtypes: torch.dtype, every: bool = False) -> Overridden:
        """The call with its floating tensors cast to each of ``dtypes`` in turn.

        Those that autocast casts: on the device, and not float64; ``every`` casts them all.
        """

        def change(x: Tensor) -> Tensor:
            eligible = x.device.type == self.device_type and x.dtype != torch.float64
            if x.is_floating_point() and (eligible or every):
                for dtype in dtypes:
                    x = x.to(dtype)
            return x

        kwargs = {name: _mapped(change, value) for name, value in self.kwargs.items()}
        return replace(self, args=_mapped(change, self.args), kwargs=kwargs)

    def run(self) -> Any:
        """What the operator returns below autocast."""
        packet, _, overload = self.operator.partition(".")
        function = getattr(getattr(torch.ops.aten, packet), overload or "default")
        with torch._C._DisableAutocast():
            return function(*self.args, **self.kwargs)


def override(operator: str, kernel: Callable[[Overridden], Any], device_types: Iterable[str] = DEVICE_TYPES) -> None:
    """Run ``kernel`` as the autocast kernel of ``operator`` (``softmax.int``), whether it has one or not."""
    for device_type in device_types:
        _register(operator, device_type, _kernel(operator, device_type, kernel))


def outside_of_regions(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, with autocast off on every device for as long as it runs."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        on = [name for name in DEVICE_TYPES if torch.is_autocast_enabled(name)]
        for name in on:
            torch.set_autocast_enabled(name, False)
        try:
            return function(*args, **kwargs)
        finally:
            for name in on:
                torch.set_autocast_enabled(name, True)

    return call


def let_through(operator: str, device_types: Iterable[str] = DEVICE_TYPES) -> None:
    """Let autocast pass ``operator`` on without casting; what it is made of is cast as ever."""
    for device_type in device_types:
        _register(operator, device_type, _untyped.fallthrough_kernel)


def _kernel(operator: str, device_type: str, kernel: Callable[[Overridden], Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: kernel(Overridden(operator, device_type, args, kwargs))


def _register(operator: str, device_type: str, kernel: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the key has a kernel already
        _LIBRARY.impl(operator, kernel, f"Autocast{device_type.upper()}")


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in _tensors(each)]
    return []


def _mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(change, each) for each in value)
    return value
