"""From the call of an operator to an ``Operation``: wide arguments, and numbers as the kernel loads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.numerics.oracle.operation import WIDE, Operation, is_real, rounded
from pytest_amp.releases import holds_in, release_of

#: Where an argument asks for float32 of a half: a wide tensor has no need of it, and its kernel refuses.
HALF_TO_FLOAT = {"aten::_softmax": 2, "aten::_log_softmax": 2}


def without_narrow_dtypes(value: object) -> object:
    """A dtype argument of any size as the wide one; anything else as it is."""
    if isinstance(value, torch.dtype) and (value.is_floating_point or value.is_complex):
        return WIDE[value.is_complex]
    return value


def operation_of(
    call: torch_private.Dispatched,
    returned: tuple[torch.dtype | None, ...],
    wide: Callable[[torch.Tensor], torch.Tensor],
    *,
    device_type: str,
    rounds: bool = True,
) -> Operation:
    """``call`` with ``wide`` applied to its real tensors, and with wide dtype arguments."""
    leaves, spec = flattened(call)
    changed = [wide(leaf) if is_real(leaf) else without_narrow_dtypes(leaf) for leaf in leaves]
    if rounds:
        changed = _loaded(call.overload.name(), leaves, changed, device_type)
    args, kwargs = torch_private.unflat(changed, spec)
    given = tuple(leaf.dtype if is_real(leaf) else None for leaf in leaves)
    if call.overload.name() in HALF_TO_FLOAT and len(args) > HALF_TO_FLOAT[call.overload.name()]:
        place = HALF_TO_FLOAT[call.overload.name()]
        args = (*args[:place], False, *args[place + 1 :])
    return Operation(call.overload, args, kwargs, given, returned, device_type, rounds)


def flattened(call: torch_private.Dispatched) -> tuple[list[Any], Any]:
    """The arguments of a call as a flat list, and what puts them together again."""
    return torch_private.flat((call.args, call.kwargs))


#: Arguments that these write to although their schemas do not say so: running_mean and running_var.
SILENTLY_WRITTEN = {
    "aten::native_batch_norm": (3, 4),
    "aten::cudnn_batch_norm": (3, 4),
    "aten::miopen_batch_norm": (3, 4),
}


#: On both device types: compared with a low tensor, the end of an interval beside it, or computed in the low dtype.
_ON_BOTH = frozenset(
    f"aten::{name}"
    for name in (
        *("gt.Scalar", "ge.Scalar", "lt.Scalar", "le.Scalar", "eq.Scalar", "ne.Scalar"),
        *("hardshrink", "hardshrink_backward", "softshrink_backward"),
        # Computed in the dtype itself; of remainders on both (H200, torch 2.11: 1.000 of the elements, else 0.22).
        *(
            f"{name}{place}"
            for name in ("fmod", "remainder")
            for place in (".Scalar", "_.Scalar", ".Tensor", "_.Tensor")
        ),
        "remainder.Scalar_Tensor",
    )
)

_OF_LISTS = (".Scalar", ".ScalarList", ".List", ".Tensor", "_.Scalar", "_.ScalarList", "_.List", "_.Tensor")

#: By device type, where numbers beside a low tensor are rounded to its dtype first. On a CPU a product or a quotient
#: takes them as they are (measured, torch 2.13): aten/src/ATen/native/cpu/BinaryOpsKernel.cpp; so does softshrink up to
#: torch 2.13, and no longer in 2.14. On CUDA a sum takes them as they are, too: ActivationThresholdKernel.cu and
#: ActivationSoftshrinkKernel.cu in aten/src/ATen/native/cuda.
ROUNDS_SCALARS = {
    "cpu": _ON_BOTH
    | ({"aten::softshrink"} if holds_in(release_of(torch.__version__), since="2.14", until=None) else set())
    | frozenset(
        f"aten::{name}"
        for name in (
            *("add.Tensor", "add_.Tensor", "sub.Tensor", "sub_.Tensor", "rsub.Scalar", "rsub.Tensor", "add.Scalar"),
            *("sub.Scalar", "pow.Scalar", "pow.Tensor_Tensor", "lerp.Tensor", "atan2"),
            # Lists of tensors run one by one.
            *(f"_foreach_{name}{place}" for name in ("add", "sub") for place in _OF_LISTS),
            *(f"_foreach_pow{place}" for place in _OF_LISTS),
        )
    ),
    "cuda": _ON_BOTH | {"aten::threshold", "aten::threshold_backward", "aten::softshrink"},
}


#: On CUDA a tensor without dimensions takes the dtype of the others as it is loaded; a number stays as it is:
#: gpu_kernel in aten/src/ATen/native/cuda/CUDALoops.cuh.
TAKES_SCALARS = frozenset(
    f"aten::{name}{place}.Tensor" for name in ("add", "sub", "mul", "div", "rsub") for place in ("", "_")
)
#: Whole numbers in a tensor with dimensions take the dtype of the low ones before anything is computed, on both device
#: types (measured on the CPU, torch 2.13): TensorIteratorBase::build in aten/src/ATen/TensorIterator.cpp casts to the
#: common dtype, or the kernel does as it loads them (aten/src/ATen/native/cuda/MemoryAccess.cuh).
TAKES_INTEGERS = TAKES_SCALARS | {
    f"aten::{name}"
    for name in (
        "fmod.Tensor",
        "fmod_.Tensor",
        "remainder.Tensor",
        "remainder_.Tensor",
        "div.Tensor_mode",
        "div_.Tensor_mode",
        "floor_divide",
        "floor_divide_",
        "xlogy.Tensor",
        "xlogy_.Tensor",
        "special_xlog1py",
        "pow.Tensor_Tensor",
        "atan2",
        "addcmul",
        "addcdiv",
    )
}


def _low_dtype(leaves: list[Any]) -> torch.dtype | None:
    """The low dtype that all real tensors with dimensions have; None if one of them has another."""
    dtypes = {leaf.dtype for leaf in leaves if is_real(leaf) and leaf.dim()}
    return dtypes.pop() if dtypes in ({torch.bfloat16}, {torch.float16}) else None


def _loaded(name: str, leaves: list[Any], changed: list[Any], device_type: str) -> list[Any]:
    """``changed`` with the numbers that the kernel of an overload rounds to the low dtype of what is beside them."""
    dtype = _low_dtype(leaves)
    if dtype is None:
        return changed
    scalars = name in ROUNDS_SCALARS.get(device_type, ())
    on_device = device_type == "cuda" and name in TAKES_SCALARS

    def is_rounded(leaf: Any) -> bool:
        if isinstance(leaf, (int, float)) and not isinstance(leaf, bool):
            return scalars
        if not isinstance(leaf, torch.Tensor) or leaf.dtype == torch.bool or leaf.is_complex():
            return False
        if leaf.dim():
            return not leaf.is_floating_point() and name in TAKES_INTEGERS
        return scalars or (on_device and leaf.device.type == "cuda")

    return [_as_low(value, dtype) if is_rounded(leaf) else value for leaf, value in zip(leaves, changed, strict=True)]


def _as_low(value: Any, dtype: torch.dtype) -> Any:
    """A number, or a tensor of numbers, rounded to ``dtype``; float64 whatever it was."""
    if isinstance(value, torch.Tensor):
        return rounded(value.to(WIDE[False]), dtype)
    return float(torch.tensor(value, dtype=WIDE[False]).to(dtype))
