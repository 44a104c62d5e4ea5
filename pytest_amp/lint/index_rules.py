"""Rule about indices and counts that are computed in a low dtype, and then used as integers."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pytest_amp.lint.program import TRANSPARENT, Call, Operand, origin
from pytest_amp.lint.suspect import Suspect
from pytest_amp.precision import dtype_name

#: Operators whose result is whole if their arguments are.
_WHOLE = TRANSPARENT | {
    *("add", "sub", "rsub", "mul", "neg", "abs", "sum", "cumsum", "round", "floor", "ceil", "clamp", "clamp_min"),
    *("remainder", "index", "index_select", "gather", "cat", "stack", "where", "masked_fill", "repeat"),
}
#: Operators that create whole numbers.
_CREATED = frozenset({"arange", "zeros", "ones", "full", "zeros_like", "ones_like", "new_zeros", "scalar_tensor"})


def rounded_integers(call: Call) -> Iterator[Suspect]:
    """Yield a conversion to integers of whole numbers that low-precision arithmetic has rounded."""
    source = call.source if call.is_cast and not call.backward else None
    if source is None or not source.is_low or call.results[0][0].is_floating_point:
        return
    exact = round(2 / torch.finfo(source.dtype).eps)  # all whole numbers up to here are in the dtype
    maker = origin(source).producer
    if maker is None or call.values.largest <= exact or not _is_whole(source):
        return
    yield Suspect(
        "rounded-positions",
        "indices or counts ({operators}) are computed in {dtype}, which does not have all whole numbers beyond "
        f"{exact}, and are used as integers",
        "Compute indices and counts with integers: leave out the cast to the low dtype",
        maker.place,
        module=maker.module,
        operators=(maker.operator,),
        dtype=source.dtype,
        number=maker.number,
        detail=f"{dtype_name(source.dtype)} values up to {call.values.largest:.0f}",
    )


def _is_whole(operand: Operand) -> bool:
    """Return whether a tensor is computed of integers alone, by operators that keep whole numbers whole."""
    todo, calls, has_integers = [operand], set[Call](), False
    while todo:
        tensor = todo.pop()
        if not (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            has_integers = True
            continue
        call = tensor.producer
        if call is None or (call.operator not in _WHOLE and call.operator not in _CREATED):
            return False
        if call not in calls and call.operator in _WHOLE:
            calls.add(call)
            todo += call.operands
    return has_integers
