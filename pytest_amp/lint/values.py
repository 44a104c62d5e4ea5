"""Facts about the values of a call that rules need, read during the call."""

from __future__ import annotations

import math

import torch

from pytest_amp.lint.program import Operand, Values
from pytest_amp.numerics.causes import constants_of
from pytest_amp.numerics.oracle.operation import LOW
from pytest_amp.torch_private import Dispatched, aliasing_of

#: Functions of an angle.
PERIODIC = frozenset({"sin", "cos", "polar"})
#: Operators that may leave the range of a dtype although their arguments are in it.
_GROWING = frozenset({
    *("mul", "pow", "sum", "mean", "exp", "add", "sub", "div", "reciprocal", "_to_copy", "copy", "addcmul", "prod"),
    *("cumsum", "linalg_vector_norm", "var", "rsqrt", "cosh", "sinh", "expm1", "exp2"),
})  # fmt: skip
#: Number of elements above which no values are read.
_MOST = 1 << 24


@torch.no_grad()
def values_of_call(
    operator: str,
    call: Dispatched,
    operands: tuple[Operand, ...],
    results: list[torch.Tensor],
    written: float | None = None,
) -> Values:
    """Return the facts of a completed call; its operator and its tensors decide which of them are read.

    ``written`` is the number that ``torch.tensor`` turns into a tensor.
    """
    result = _readable(results)
    if result is None:
        return Values()
    if operator in PERIODIC:
        return Values(largest=_largest(call, last=operator == "polar"))
    if operator == "_to_copy" and not (result.dtype.is_floating_point or result.dtype is torch.bool):
        return Values(largest=_largest(call, last=False) if _is_low(call) else 0.0)  # indices, counts
    if result.dtype not in LOW:
        return Values()
    constants = constants_of(call, results)
    inexact = operator in ("_to_copy", "copy") and _is_inexact(call, operator, result)
    inexact = inexact or (operator in ("arange", "range") and _steps_are_lost(result))
    infinite = _infinities(call, operator, result)
    vanished = tuple(number for number in constants.vanished if operands or operator in ("full", "scalar_tensor"))
    beyond = constants.beyond
    if infinite and operator in ("_to_copy", "copy"):
        beyond += _ends(call, operator, result)
    if written is not None and operator == "lift_fresh" and result.numel() == 1:
        vanished += (written,) if written and float(result) == 0 else ()
        beyond += (written,) if math.isfinite(written) and not math.isfinite(float(result)) else ()
    if operator in ("clamp", "clamp_max", "minimum"):
        vanished += tuple(number for number in _floats(call) if number != 1 and _rounds_to_one(number, result.dtype))
    return Values(infinite=infinite, inexact=inexact, vanished=vanished, beyond=beyond)


@torch.no_grad()
def values_in_float32(operator: str, call: Dispatched, results: list[torch.Tensor]) -> Values:
    """Return the infinities alone of a completed call of a run without a region; none of low-precision results."""
    result = _readable(results)
    return Values(infinite=0 if result is None or result.dtype in LOW else _infinities(call, operator, result))


def _readable(results: list[torch.Tensor]) -> torch.Tensor | None:
    """Return the first result if its values can be read, and are not too many."""
    result = results[0] if results else None
    if result is None or result.layout != torch.strided or result.numel() > _MOST or not result.numel():
        return None
    return result


def _infinities(call: Dispatched, operator: str, result: torch.Tensor) -> int:
    """Return the number of infinities that an operator computes of finite arguments."""
    if operator not in _GROWING:
        return 0
    count = int(result.isinf().sum())
    return count if count and _are_finite(call, operator) else 0


def _ends(call: Dispatched, operator: str, result: torch.Tensor) -> tuple[float, ...]:
    """Return the ends of the source's range if a conversion makes these values alone infinite; empty otherwise.

    A mask that was made with ``torch.finfo(dtype).min`` of the wider dtype has them, and no computed value does.
    """
    source = _converted(call, operator)
    if source is None or source.numel() != result.numel() or not source.is_floating_point():
        return ()
    beyond = source.reshape(-1)[result.detach().reshape(-1).isinf()]
    if not bool((beyond.abs() == torch.finfo(source.dtype).max).all()):
        return ()
    return tuple(dict.fromkeys(beyond.tolist()))


def _converted(call: Dispatched, operator: str) -> torch.Tensor | None:
    """Return the tensor that ``_to_copy`` or ``copy`` converts, without its history; None without tensors."""
    tensors = _tensors(call)
    return tensors[-1 if operator == "copy" else 0].detach() if tensors else None


def _floats(call: Dispatched) -> list[float]:
    return [leaf for leaf in (*call.args, *call.kwargs.values()) if isinstance(leaf, float)]


def _rounds_to_one(number: float, dtype: torch.dtype) -> bool:
    return float(torch.tensor(number, dtype=torch.float64).to(dtype)) == 1


def _tensors(call: Dispatched) -> list[torch.Tensor]:
    return [leaf for leaf in (*call.args, *call.kwargs.values()) if isinstance(leaf, torch.Tensor)]


def _is_low(call: Dispatched) -> bool:
    return any(tensor.dtype in LOW for tensor in _tensors(call))


def _largest(call: Dispatched, *, last: bool) -> float:
    tensors = [tensor for tensor in _tensors(call) if tensor.is_floating_point()]
    if not tensors:
        return 0.0
    tensor = tensors[-1] if last else tensors[0]
    largest = float(tensor.detach().abs().max()) if tensor.numel() else 0.0
    return largest if math.isfinite(largest) else 0.0


def _is_inexact(call: Dispatched, operator: str, result: torch.Tensor) -> bool:
    """Return whether a conversion to a low dtype changes integers, or merges different whole numbers."""
    source = _converted(call, operator)
    if source is None or source.numel() != result.numel() or source.dtype in (*LOW, torch.bool) or source.is_complex():
        return False
    if not source.is_floating_point():
        return bool((result.detach().double().reshape(-1) != source.double().reshape(-1)).any())
    if source.numel() < 2 or not bool((source == source.round()).all()):
        return False
    if float(source.abs().max()) >= 2.0**24:
        return False
    return _distinct(result) < _distinct(source)


def _distinct(tensor: torch.Tensor) -> int:
    return len(set(tensor.detach().reshape(-1).tolist()))


def _steps_are_lost(result: torch.Tensor) -> bool:
    return result.numel() > 1 and bool((result.diff() == 0).any())


def _are_finite(call: Dispatched, operator: str) -> bool:
    """Return whether the arguments are finite; False if the call has overwritten one of them."""
    tensors = _tensors(call)
    if operator == "copy":
        tensors = tensors[1:]
    elif aliasing_of(call.overload).writes:
        return False
    numbers = _floats(call)
    finite = all(bool(x.isfinite().all()) for x in tensors if x.is_floating_point())
    return finite and all(map(math.isfinite, numbers))
