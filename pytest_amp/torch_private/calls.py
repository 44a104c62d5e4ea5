"""Calls of overloads, and what stands for their kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_amp.torch_private.trees import pytree

#: What torch says where a kernel takes arguments of one device alone: c10/core/impl/... common_device_check_failure in
#: aten/src/ATen/core/adaption.cpp.
_SEVERAL_DEVICES = "to be on the same device"


def call_overload(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an overload; whole numbers on the CPU that its kernel does not take there are moved to the other arguments.

    A composite operator takes some arguments on another device than its parts do, which a dispatch mode calls: the
    lengths of ``ctc_loss``, for one (aten/src/ATen/native/LossCTC.cpp).
    """
    try:
        return overload(*args, **kwargs)
    except RuntimeError as error:
        moved = _on_one_device(args, kwargs) if _SEVERAL_DEVICES in str(error) else None
        if moved is None:
            raise
    return overload(*moved[0], **moved[1])


def _on_one_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    """The arguments with whole numbers moved from the CPU to the device of the others; None if there is no other."""
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
    """Return a Python function of other operators that computes what an overload does; None if torch has none.

    None, too, where ``torch._decomp.decomposition_table`` is gone.
    """
    try:
        from torch._decomp import decomposition_table
    except ImportError:
        return None
    found: Callable[..., Any] | None = decomposition_table.get(overload)
    return found
