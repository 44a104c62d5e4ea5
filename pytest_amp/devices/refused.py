"""Uses of a fake device that would end the process, refused in one line before torch is called.

A fake tensor that requires a gradient aborts the process on a build without the back end. A tensor created outside of a
scope of fake tensors needs hardware: an error without it, and a real tensor with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from pytest_amp import torch_private
from pytest_amp.failure import AmpUsageError, is_usage_error

__tracebackhide__ = is_usage_error


def refusing(device_type: str) -> AbstractContextManager[Any]:
    """Return a scope in which impossible uses of the fake device of ``device_type`` raise AmpUsageError."""
    import torch
    from torch.overrides import TorchFunctionMode

    setter = torch.Tensor.requires_grad.__set__  # type: ignore[attr-defined]  # a property defined in C

    class Refusing(TorchFunctionMode):
        """Mode that examines each call of torch before it is made."""

        def __torch_function__(
            self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            keywords = dict(kwargs or {})
            if function is torch.device:
                return function(*args, **keywords)
            leaves = [*_leaves((*args, *keywords.values()))]
            here = any(_is_on(leaf, device_type) for leaf in leaves)
            fakes = any(isinstance(leaf, torch.Tensor) and _is_on(leaf, device_type) for leaf in leaves)
            if here and not fakes and not torch_private.under_fake_tensors():
                raise AmpUsageError(
                    f"{_name(function)}: {device_type} is a fake device here, which has rules and no hardware; "
                    "expected tensors created within amp.device.tensors(), which have the device amp_device"
                )
            if function is torch.Tensor.requires_grad_:
                wants = keywords.get("requires_grad", args[1] if len(args) > 1 else True)
            else:
                wants = args[1] if function is setter else keywords.get("requires_grad", False)
            if (wants and here) or any(_is_on(leaf, device_type) and _wants(leaf) for leaf in leaves):
                raise AmpUsageError(
                    f"{_name(function)}: a tensor on the fake device {device_type} that requires a gradient, for which "
                    "torch ends the process; expected requires_grad=False, as in torch.nn.Parameter(..., False)"
                )
            return function(*args, **keywords)

    return Refusing()


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _leaves(value)
        else:
            yield value


def _is_on(value: Any, device_type: str) -> bool:
    import torch

    if isinstance(value, torch.Tensor):
        return value.device.type == device_type
    if isinstance(value, torch.device):
        return value.type == device_type
    return isinstance(value, str) and value.partition(":")[0] == device_type


def _wants(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.requires_grad


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))
