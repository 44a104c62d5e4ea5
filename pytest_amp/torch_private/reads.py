"""Reads of tensor values by the host: on an accelerator each waits for the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_amp.torch_private.modes import dispatch_mode

#: Operators that bring a value to the host: ``item``, ``bool`` and ``tolist`` of one element, ``torch.equal``.
_READING = ("aten._local_scalar_dense", "aten.equal", "aten.is_nonzero")


def counted_reads(call: Callable[[], object]) -> int:
    """How many values of tensors ``call`` reads; backward passes on other threads are not seen.

    Raises PrivateApiGone without ``torch.utils._python_dispatch.TorchDispatchMode``.
    """
    count = 0
    mode: Any = dispatch_mode()

    class Reads(mode):  # type: ignore[misc]  # the base has no types
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal count
            count += str(func).startswith(_READING)
            return func(*args, **(kwargs or {}))

    with Reads():
        call()
    return count
