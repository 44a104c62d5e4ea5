"""Kernels that planted defects put in place of torch's: of autocast, and of devices.

Registered before any test runs, and never removed.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tests.planted.table import VARIABLE

_untyped: Any = torch.library
#: Kept for as long as the process runs: torch removes the kernels of a library that is collected.
_LIBRARY = _untyped.Library("aten", "IMPL")

#: The device type whose autocast most defects break. Not in the table: that is imported before the environment is set.
DEVICE = os.environ.get(VARIABLE, "cpu")
LOW_DTYPES = (torch.bfloat16, torch.float16)
#: The autocast dtype of a call, whichever that is; for ``override``.
LOW = object()
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
        """Return the floating tensors among the arguments."""
        return [x for x in _tensors((self.args, tuple(self.kwargs.values()))) if x.is_floating_point()]

    def cast(self, *dtypes: torch.dtype, every: bool = False) -> Overridden:
        """Return the call with its floating tensors cast to each of ``dtypes`` in turn.

        Only tensors that autocast casts, which are on the device and not float64; with ``every`` all of them.
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
        """Call the operator below autocast."""
        packet, _, overload = self.operator.partition(".")
        function = getattr(getattr(torch.ops.aten, packet), overload or "default")
        with torch._C._DisableAutocast():
            return function(*self.args, **self.kwargs)


Kernel = Callable[[Overridden], Any]


def override(
    operator: str, kernel: Kernel | None = None, device_types: Iterable[str] = DEVICE_TYPES, *, cast: object = LOW
) -> None:
    """Run ``kernel`` as the autocast kernel of ``operator`` (``softmax.int``), whether it has one or not.

    Without a kernel the arguments are cast to ``cast``, a dtype or the autocast dtype, and the operator runs.
    """

    def cast_and_run(call: Overridden) -> Any:
        return call.cast(cast if isinstance(cast, torch.dtype) else call.low).run()

    for device_type in device_types:
        function = _on(operator, device_type, kernel or cast_and_run)
        register(operator, function, f"Autocast{device_type.upper()}")


def let_through(operator: str, device_types: Iterable[str] = DEVICE_TYPES) -> None:
    """Let autocast pass ``operator`` on without casting; the operators that it calls are cast as before."""
    for device_type in device_types:
        register(operator, _untyped.fallthrough_kernel, f"Autocast{device_type.upper()}")


def register(operator: str, function: Any, key: str) -> None:
    """Register ``function`` as the kernel of ``operator`` for a dispatch key (``AutogradCPU``)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the key has a kernel already
        _LIBRARY.impl(operator, function, key)


def outside_of_regions(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` with autocast off on every device while it runs."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        enabled = [name for name in DEVICE_TYPES if torch.is_autocast_enabled(name)]
        for name in enabled:
            torch.set_autocast_enabled(name, False)
        try:
            return function(*args, **kwargs)
        finally:
            for name in enabled:
                torch.set_autocast_enabled(name, True)

    return call


def replace_kernel(operator: str, kernel: Callable[..., Any]) -> None:
    """Run ``kernel`` as the kernel of ``operator`` (``mean.dim``); it must not call that operator itself.

    On a CPU, and on CUDA if torch is built with it: below autocast, so that manual casts reach it, too.
    """
    for device in ("CPU", "CUDA") if torch.version.cuda else ("CPU",):
        register(operator, kernel, device)


def truncate_conversions(condition: Callable[[Tensor], bool] = lambda _: True) -> None:
    """Truncate conversions from float32 to bf16 on DEVICE, of the tensors for which ``condition`` is true."""

    def to_copy(
        x: Any,
        *,
        dtype: torch.dtype | None = None,
        layout: torch.layout | None = None,
        device: torch.device | None = None,
        pin_memory: bool | None = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format | None = None,
    ) -> Tensor:
        if not isinstance(x, Tensor):  # a number that arithmetic has wrapped
            return torch.tensor(x, dtype=dtype, device=device)
        result = torch.empty_like(
            x, dtype=dtype or x.dtype, device=device or x.device, memory_format=memory_format or torch.preserve_format
        )
        if dtype is torch.bfloat16 and x.dtype is torch.float32 and condition(x):
            halves = x.contiguous().view(torch.int16).clone()
            halves.view(-1)[::2] = 0  # the lower halves, where the lowest byte comes first
            x = halves.view(torch.float32)
        return result.copy_(x, non_blocking=non_blocking)

    _LIBRARY.impl("_to_copy", to_copy, DEVICE.upper())


def _on(operator: str, device_type: str, kernel: Kernel) -> Callable[..., Any]:
    return lambda *args, **kwargs: kernel(Overridden(operator, device_type, args, kwargs))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for element in value for tensor in _tensors(element)]
    return []


def _mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(change, element) for element in value)
    return value
