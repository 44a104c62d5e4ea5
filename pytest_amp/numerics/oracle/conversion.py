"""Convert an operator call to an ``Operation``: float64 arguments, with scalars rounded as the kernel loads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.data_files.releases import holds_in, release_of
from pytest_amp.numerics.oracle.operation import WIDE, Operation, is_real, rounded

#: Index of the argument ``half_to_float``, which float64 kernels reject and float64 tensors do not need.
HALF_TO_FLOAT = {"aten::_softmax": 2, "aten::_log_softmax": 2}


def without_narrow_dtypes(value: object) -> object:
    """Replace a floating-point dtype by float64 and a complex one by complex128; return other values unchanged."""
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
    """Convert ``call``: apply ``wide`` to its floating-point and complex tensors, and widen its dtype arguments."""
    leaves, spec = flattened(call)
    changed = [wide(leaf) if is_real(leaf) else without_narrow_dtypes(leaf) for leaf in leaves]
    if rounds:
        changed = _loaded(call, leaves, changed, device_type)
    args, kwargs = torch_private.unflat(changed, spec)
    input_dtypes = tuple(leaf.dtype if is_real(leaf) else None for leaf in leaves)
    if call.overload.name() in HALF_TO_FLOAT and len(args) > HALF_TO_FLOAT[call.overload.name()]:
        place = HALF_TO_FLOAT[call.overload.name()]
        args = (*args[:place], False, *args[place + 1 :])
    return Operation(call.overload, args, kwargs, input_dtypes, returned, device_type, rounds)


def flattened(call: torch_private.Dispatched) -> tuple[list[Any], Any]:
    """Return the arguments of a call as a flat list, which must not be changed, and their layout."""
    return call.flat


#: Indices of arguments that operators mutate without an annotation in their schemas: running_mean and running_var.
SILENTLY_WRITTEN = {
    "aten::native_batch_norm": (3, 4),
    "aten::cudnn_batch_norm": (3, 4),
    "aten::miopen_batch_norm": (3, 4),
}


#: Operators that round scalars on a CPU and on CUDA: comparisons with a low-precision tensor, operators with the bounds
#: of an interval, and computations in the low dtype.
_ON_BOTH = frozenset(
    f"aten::{name}"
    for name in (
        *("gt.Scalar", "ge.Scalar", "lt.Scalar", "le.Scalar", "eq.Scalar", "ne.Scalar"),
        *("hardshrink", "hardshrink_backward", "softshrink_backward"),
        # Computed in the low dtype on both (H200, torch 2.11: 1.000 of the elements agree, 0.22 without rounding).
        *(
            f"{name}{place}"
            for name in ("fmod", "remainder")
            for place in (".Scalar", "_.Scalar", ".Tensor", "_.Tensor")
        ),
        "remainder.Scalar_Tensor",
    )
)

_OF_LISTS = (".Scalar", ".ScalarList", ".List", ".Tensor", "_.Scalar", "_.ScalarList", "_.List", "_.Tensor")

#: Operators, by device type, that first round scalars to the dtype of a low-precision tensor. On a CPU, products and
#: quotients do not (measured, torch 2.13): aten/src/ATen/native/cpu/BinaryOpsKernel.cpp. softshrink does since torch
#: 2.14. On CUDA, sums do not, either, but threshold and softshrink do: ActivationThresholdKernel.cu and
#: ActivationSoftshrinkKernel.cu in aten/src/ATen/native/cuda.
ROUNDS_SCALARS = {
    "cpu": _ON_BOTH
    | ({"aten::softshrink"} if holds_in(release_of(torch.__version__), since="2.14", until=None) else set())
    | frozenset(
        f"aten::{name}"
        for name in (
            *("add.Tensor", "add_.Tensor", "sub.Tensor", "sub_.Tensor", "rsub.Scalar", "rsub.Tensor", "add.Scalar"),
            *("sub.Scalar", "pow.Scalar", "pow.Tensor_Tensor", "lerp.Tensor", "atan2"),
            # These operators run the tensors of a list one by one.
            *(f"_foreach_{name}{place}" for name in ("add", "sub") for place in _OF_LISTS),
            *(f"_foreach_pow{place}" for place in _OF_LISTS),
        )
    ),
    "cuda": _ON_BOTH | {"aten::threshold", "aten::threshold_backward", "aten::softshrink"},
}


#: Operators that on CUDA convert a zero-dimensional tensor to the dtype of the other arguments, but round no Python
#: scalar: gpu_kernel in aten/src/ATen/native/cuda/CUDALoops.cuh.
TAKES_SCALARS = frozenset(
    f"aten::{name}{place}.Tensor" for name in ("add", "sub", "mul", "div", "rsub") for place in ("", "_")
)
#: Operators that convert an integer tensor of at least one dimension to the dtype of the low-precision tensors before
#: they compute, on both device types (measured on the CPU, torch 2.13). TensorIteratorBase::build in
#: aten/src/ATen/TensorIterator.cpp casts to the common dtype, or the kernel casts the values that it loads
#: (aten/src/ATen/native/cuda/MemoryAccess.cuh).
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


#: Operators that on a CPU convert a zero-dimensional tensor that is the first operand, but take a second operand in
#: float32 (measured, torch 2.13): mul_kernel and div_true_kernel in aten/src/ATen/native/cpu/BinaryOpsKernel.cpp.
TAKES_FIRST_OPERANDS = frozenset(
    f"aten::{name}" for name in ("mul.Tensor", "div.Tensor", "_foreach_mul.List", "_foreach_div.List")
)
#: Operators that on a CPU convert every zero-dimensional tensor, but no Python scalar: TensorIteratorBase::build in
#: aten/src/ATen/TensorIterator.cpp casts every argument to the common dtype (measured, torch 2.13).
TAKES_TENSORS = frozenset(
    f"aten::{name}{place}"
    for names, places in (
        (("hypot", "atan2", "addcmul", "addcdiv"), ("", "_")),
        (("logaddexp", "logaddexp2", "igamma", "igammac"), ("",)),
        (("pow_", "lerp_"), (".Tensor",)),
        (("sigmoid", "tanh", "silu", "softplus"), ("_backward",)),
        (("_foreach_addcmul", "_foreach_addcdiv"), (".Scalar", ".ScalarList", "_.Scalar", "_.ScalarList")),
    )
    for name in names
    for place in places
)


def _low_dtype(leaves: list[Any]) -> torch.dtype | None:
    """Return the 16-bit dtype that all floating-point tensors of at least one dimension share, if there is one."""
    dtypes = {leaf.dtype for leaf in leaves if is_real(leaf) and leaf.dim()}
    return dtypes.pop() if dtypes in ({torch.bfloat16}, {torch.float16}) else None


def _loaded(call: torch_private.Dispatched, leaves: list[Any], changed: list[Any], device_type: str) -> list[Any]:
    """Round scalars and integers in ``changed`` that the kernel converts to the low dtype of the other arguments."""
    dtype = _low_dtype(leaves)
    if dtype is None:
        return changed
    name = call.overload.name()
    scalars = name in ROUNDS_SCALARS.get(device_type, ())
    on_device = device_type == "cuda" and name in TAKES_SCALARS
    tensors = _converted_tensors(call, len(leaves)) if device_type == "cpu" else 0

    def is_rounded(place: int, leaf: Any) -> bool:
        if isinstance(leaf, (int, float)) and not isinstance(leaf, bool):
            return scalars
        if not isinstance(leaf, torch.Tensor) or leaf.dtype == torch.bool or leaf.is_complex():
            return False
        if leaf.dim():
            return not leaf.is_floating_point() and name in TAKES_INTEGERS
        return scalars or place < tensors or (on_device and leaf.device.type == "cuda")

    both = enumerate(zip(leaves, changed, strict=True))
    return [_as_low(value, dtype) if is_rounded(place, leaf) else value for place, (leaf, value) in both]


def _converted_tensors(call: torch_private.Dispatched, leaves: int) -> int:
    """Return how many of the flat arguments, from the first on, a CPU kernel converts if they are zero-dimensional."""
    name = call.overload.name()
    if name in TAKES_TENSORS:
        return leaves
    if name not in TAKES_FIRST_OPERANDS:
        return 0
    first = call.args[0]
    return len(first) if isinstance(first, (list, tuple)) else 1


def _as_low(value: Any, dtype: torch.dtype) -> Any:
    """Round a Python scalar or a tensor to ``dtype``; the result is float64."""
    if isinstance(value, torch.Tensor):
        return rounded(value.to(WIDE[False]), dtype)
    return float(torch.tensor(value, dtype=WIDE[False]).to(dtype))
