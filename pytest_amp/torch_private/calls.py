"""Calls of operator overloads, and their decompositions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_amp.torch_private.trees import pytree

#: Part of torch's message for a kernel that takes arguments of one device only: common_device_check_failure in
#: aten/src/ATen/core/adaption.cpp.
_SEVERAL_DEVICES = "to be on the same device"


def call_overload(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an overload; if its kernel rejects integer tensors on the CPU, move them to the other arguments' device.

    A dispatch mode calls the parts of a composite operator, and a composite operator accepts some arguments on a
    device that its parts do not: the lengths of ``ctc_loss``, for example (aten/src/ATen/native/LossCTC.cpp).
    """
    try:
        return overload(*args, **kwargs)
    except RuntimeError as error:
        moved = _on_one_device(args, kwargs) if _SEVERAL_DEVICES in str(error) else None
        if moved is None:
            raise
    return overload(*moved[0], **moved[1])


def _on_one_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    """Move integer and bool tensors to the one device besides the CPU; None if there is not exactly one."""
    import torch

    leaves, spec = pytree().tree_flatten((args, kwargs))
    devices = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)} - {torch.device("cpu")}
    if len(devices) != 1:
        return None
    device = devices.pop()
    moved = [
        leaf.to(device) if isinstance(leaf, torch.Tensor) and not leaf.is_floating_point() else leaf for leaf in leaves
    ]
    result: tuple[Any, Any] = pytree().tree_unflatten(moved, spec)
    return result


def decomposition_of(overload: Any) -> Callable[..., Any] | None:
    """Return torch's decomposition of an overload into other operators, a Python function; None if it has none.

    Also return None if ``torch._decomp.decomposition_table`` is missing.
    """
    try:
        from torch._decomp import decomposition_table
    except ImportError:
        return None
    decomposition: Callable[..., Any] | None = decomposition_table.get(overload)
    return decomposition
