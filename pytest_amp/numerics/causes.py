"""Find the cause of infinities or NaN that an operator returns for finite arguments.

The call is repeated in float64 on the same arguments. If its result is finite, the values exceed the range of the
original dtype, or the kernel is wrong. Otherwise the operator has no finite value for these arguments, as in a division
by zero or a logarithm of zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.numerics.oracle.conversion import operation_of
from pytest_amp.numerics.oracle.models import REFUSALS, NotModelled, evaluate
from pytest_amp.numerics.oracle.operation import LOW, is_real, widened
from pytest_amp.precision import dtype_name

#: Operators that add, clamp to, or fill with a constant, which the dtype must represent at least approximately.
_KEEP_CONSTANTS = (
    *("add", "sub", "rsub", "clamp", "maximum", "minimum", "fmax", "fmin", "where", "full", "fill", "scalar_tensor"),
    *("masked_fill", "threshold", "hypot", "eq", "lift_fresh", "cast"),
)
#: Divisions; their last tensor is the divisor.
_QUOTIENTS = ("div", "true_divide", "divide", "remainder", "fmod", "floor_divide", "addcdiv")
#: Operators that have no real value for negative arguments.
_ROOTS = ("sqrt", "rsqrt", "log", "log2", "log10", "pow", "float_power")


@dataclass(frozen=True)
class Cause:
    """Cause within one call: the ``event``, including values, its ``reason``, and ``advice`` to prevent it."""

    event: str
    reason: str
    advice: str


@dataclass(frozen=True)
class Constants:
    """Constants of a call that underflow (``vanished``) or overflow in the dtype of its result."""

    vanished: tuple[float, ...] = ()
    beyond: tuple[float, ...] = ()


#: Function that returns the nearest constant in a tensor's history that is zero in its dtype, and the line.
Vanished = Callable[[torch.Tensor], tuple[float, str] | None]


def operator_of(call: torch_private.Dispatched) -> str:
    """Return the name of an operator in PyTorch's API, without namespace and overload: ``div``."""
    name = str(call.overload.name()).rpartition("::")[2].partition(".")[0].rstrip("_")
    return _KNOWN_AS.get(name, name)


#: Operators whose name in PyTorch's API differs.
_KNOWN_AS = {"_to_copy": "cast", "_softmax": "softmax", "_log_softmax": "log_softmax"}


def constants_of(call: torch_private.Dispatched, results: list[torch.Tensor]) -> Constants:
    """Return the constants of a call that underflow or overflow in the dtype of its first floating-point result."""
    dtype = next((value.dtype for value in results if value.is_floating_point()), None)
    if dtype not in _RANGED:
        return Constants()
    keeps = operator_of(call) in _KEEP_CONSTANTS or operator_of(call).startswith("clamp")
    vanished, beyond = [], []
    for number in _numbers(call):
        if number == 0 or not math.isfinite(number):
            continue
        stored = float(torch.tensor(number, dtype=torch.float64).to(dtype))
        if stored == 0 and keeps:
            vanished.append(number)
        elif not math.isfinite(stored):
            beyond.append(number)
    return Constants(tuple(vanished), tuple(beyond))


#: The dtypes whose range is checked; float64 represents any constant.
_RANGED = (torch.float16, torch.bfloat16, torch.float32)


def _numbers(call: torch_private.Dispatched) -> list[float]:
    """Return the Python numbers and the zero-dimensional floating tensors among the arguments."""
    leaves, _ = call.flat
    numbers = []
    for leaf in leaves:
        if isinstance(leaf, (int, float)) and not isinstance(leaf, bool):
            numbers.append(float(leaf))
        elif isinstance(leaf, torch.Tensor) and not leaf.dim() and leaf.is_floating_point():
            numbers.append(float(leaf.detach()))
    return numbers


def cause_of(call: torch_private.Dispatched, result: torch.Tensor, device_type: str, vanished: Vanished) -> Cause:
    """Return the cause of non-finite values in ``result`` of ``call``, whose arguments are finite.

    ``vanished`` searches the history of an argument for constants that underflowed.
    """
    dtype = dtype_name(result.dtype)
    bad = ~result.isfinite()
    share = f"{int(bad.sum())} of {result.numel()} elements of {dtype}"
    infinite = [number for number in _numbers(call) if not math.isfinite(number)]
    if infinite:
        return Cause(f"a constant of {infinite[0]:g} ({share})", "the program's own constant", "a finite constant")
    beyond = constants_of(call, [result]).beyond
    if beyond:
        return Cause(
            f"{beyond[0]:g} is {_stored(beyond[0], result.dtype)} in {dtype} ({share})",
            f"a constant of {beyond[0]:g}, beyond the largest {dtype}, {_largest(result.dtype):.5g}",
            "torch.finfo(x.dtype).min, or a masked_fill or where in float32",
        )
    exact = _exact(call, result, device_type)
    if exact is not None and bool(exact[bad].isfinite().all()):
        return _of_range(call, exact, result, share)
    return _of_arguments(call, result, share, vanished)


def _of_range(call: torch_private.Dispatched, exact: torch.Tensor, result: torch.Tensor, share: str) -> Cause:
    """Return the cause if the value is finite in float64: it exceeds the dtype's range, or the kernel is wrong."""
    size, dtype = float(exact[~result.isfinite()].abs().max()), dtype_name(result.dtype)
    advice = _wider(result.dtype, "smaller values")
    if operator_of(call) == "cast" and torch_private.current_node() is None:
        advice = "float32 (autocast(enabled=False) around the operator that it is cast for), or smaller values"
    elif operator_of(call) == "cast":
        advice = "smaller gradients: a larger epsilon or bound in the forward pass, a mean in place of a sum"
    if size > _largest(result.dtype):
        return Cause(f"overflow: up to {size:.3g} in {share}", f"{dtype} ends at {_largest(result.dtype):.5g}", advice)
    return Cause(
        f"{share} are not finite; their exact values are at most {size:.3g}",
        f"the kernel: an intermediate result exceeds the range of {dtype}, or the kernel is wrong",
        advice,
    )


def _wider(dtype: torch.dtype, otherwise: str) -> str:
    """Return the advice ``otherwise``, preceded by the advice to use float32 if the dtype is low."""
    return f"float32 (x.float() before it), or {otherwise}" if dtype in LOW else otherwise


def _of_arguments(call: torch_private.Dispatched, result: torch.Tensor, share: str, vanished: Vanished) -> Cause:
    """Return the cause if the value is not finite in float64, either."""
    what, operand = _singularity(call, ~result.isfinite())
    dtype = dtype_name(result.dtype if operand is None else operand.dtype)
    constant = vanished(operand) if operand is not None else None
    if constant is not None and operand is not None:
        number, line = constant
        return Cause(
            f"{what} in {share}: {number:g} is 0 in {dtype}",
            f"an epsilon of {number:g} ({line}), which {dtype} cannot represent: values below "
            f"{_underflow_threshold(operand.dtype):.2g} become 0",
            _wider(operand.dtype, "an epsilon of 1e-4 or more"),
        )
    if operand is None and bool(result.isinf().any()) and what.endswith(_NO_VALUE):
        return Cause(
            f"overflow: {share}, beyond float64 as well", f"{dtype} ends at {_largest(result.dtype):.5g}", "a bound"
        )
    argument = "arguments outside of its domain" if operand is None else "an argument that is exactly 0"
    bound = "a bound from below (clamp_min)"
    return Cause(f"{what} in {share}", f"{argument}, in {dtype}", _wider(result.dtype, bound))


_NO_VALUE = " has no finite value for its arguments"


def _singularity(call: torch_private.Dispatched, bad: torch.Tensor) -> tuple[str, torch.Tensor | None]:
    """Return a description of the singularity, and the argument that is zero there."""
    operator = operator_of(call)
    leaves = torch_private.flat(call.args)[0]
    tensors = [leaf for leaf in leaves if is_real(leaf)]
    x = tensors[0] if tensors else None
    if operator in _QUOTIENTS and len(leaves) > 1:
        top = None if x is None else _at(tensors[-2] if len(tensors) > 1 else x, bad)
        zero = top is not None and bool((top == 0).any())
        return ("0 / 0" if zero else "a quotient by 0"), tensors[-1] if len(tensors) > 1 else None
    if x is None:
        return f"{operator}{_NO_VALUE}", None
    values = _at(x, bad)
    if values is not None and operator in _ROOTS and bool((values < 0).any()):
        return f"{operator} of a negative number", None
    if values is not None and bool((values == 0).any()):
        name = "log" if operator.startswith("log") else operator
        return f"{name} of 0", x
    return f"{operator}{_NO_VALUE}", None


def _at(value: torch.Tensor, bad: torch.Tensor) -> torch.Tensor | None:
    """Return the elements of an argument at the non-finite elements of a result; None if the shapes differ."""
    try:
        return value.expand(bad.shape)[bad]
    except RuntimeError:
        return None


def _exact(call: torch_private.Dispatched, result: torch.Tensor, device_type: str) -> torch.Tensor | None:
    """Compute the same result in float64; return None if that is not possible."""
    try:
        values = evaluate(operation_of(call, (), widened, device_type=device_type, rounds=False))
    except (NotModelled, *REFUSALS):
        return None
    same: list[Any] = [x for x in values if is_real(x) and x.shape == result.shape and not x.is_complex()]
    return same[0] if same else None


def _largest(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).max)


def _underflow_threshold(dtype: torch.dtype) -> float:
    """Return the largest number that rounds to zero in a dtype: half of its smallest subnormal number."""
    return float(torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2)


def _stored(number: float, dtype: torch.dtype) -> str:
    return f"{float(torch.tensor(number, dtype=torch.float64).to(dtype)):g}"
