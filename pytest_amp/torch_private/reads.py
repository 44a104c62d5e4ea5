"""Reads of tensor values by the host, each of which waits for the device on an accelerator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_amp.torch_private.calls import call_overload
from pytest_amp.torch_private.modes import each_call

#: Operators that copy a value to the host: ``item``, ``bool`` and ``tolist`` of one element, ``torch.equal``.
_READING = ("aten._local_scalar_dense", "aten.equal", "aten.is_nonzero")


def counted_reads(call: Callable[[], object]) -> int:
    """Count the tensor values that ``call`` reads on the host, except in backward passes on other threads.

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
