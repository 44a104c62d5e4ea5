"""Reads of tensor values by the host: on an accelerator each waits for the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_amp.torch_private.calls import call_overload
from pytest_amp.torch_private.modes import each_call

#: Operators that bring a value to the host: ``item``, ``bool`` and ``tolist`` of one element, ``torch.equal``.
_READING = ("aten._local_scalar_dense", "aten.equal", "aten.is_nonzero")


def counted_reads(call: Callable[[], object]) -> int:
    """How many values of tensors ``call`` reads; backward passes on other threads are not seen.

    Raises PrivateApiGone without ``torch.utils._python_dispatch.TorchDispatchMode``.
    """
    count = 0

    def counted(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal count
        count += str(overload).startswith(_READING)
        return call_overload(overload, args, kwargs)

    with each_call(counted):
        call()
    return count
