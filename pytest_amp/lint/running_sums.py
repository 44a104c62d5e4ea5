"""Long sums and products that a program accumulates term by term in a low dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_amp.lint.program import TRANSPARENT, Call, Operand, ancestors, origin

#: Operators that add to a running sum.
_ADDITIONS = frozenset({"add", "sub", "lerp", "addcmul", "addcdiv", "index_add", "scatter_add"})
#: Operators that add many terms to the elements that an index names.
_SCATTERED = frozenset({"index_add", "scatter_add", "scatter_reduce"})
_LINEAR = frozenset({"add", "sub", "rsub", "mul", "div", "neg"})
#: Operator by which GradScaler divides gradients by the scale.
_UNSCALING = frozenset({"_amp_foreach_non_finite_check_and_unscale"})
#: Minimum number of chained additions of a running sum, and minimum length of a cumulative sum.
LONG = 16
#: Minimum number of chained additions of gradients, which no loop needs to round: the second micro-batch.
GRADIENTS = 2


def running_sums(calls: Sequence[Call]) -> Iterator[tuple[Call, str]]:
    """Yield low-precision chains of additions or products, and scattered additions, with their lengths in words.

    The terms of a chain do not depend on the previous result, unlike those of a residual stream or a gated state. A sum
    of gradients of several backward passes is yielded at any length.
    """
    lengths: dict[Call, int] = {}
    reported: set[tuple[str, int]] = set()
    for call in calls:
        if not call.is_low or call.place.is_torch:
            continue
        if call.operator in _SCATTERED and not call.place.library and _terms_of_scatter(call) >= LONG:
            yield call, f"{_terms_of_scatter(call)} terms each"
        if call.operator not in _ADDITIONS and not _is_product(call):
            continue
        before = _previous(call)
        if before is None or before.place.line != call.place.line or _depends(call, before):
            lengths[call] = 1
            continue
        lengths[call] = lengths.get(before, 1) + 1
        if call.place.key in reported:
            continue
        if lengths[call] >= GRADIENTS and call.stage == before.stage and _adds_gradients(call, before):
            reported.add(call.place.key)
            yield call, "gradients of several backward passes"
        elif lengths[call] >= LONG:
            reported.add(call.place.key)
            noun = "products" if _is_product(call) else "additions"
            yield call, f"{LONG} {noun} and more"


def _terms_of_scatter(call: Call) -> int:
    """Return the mean number of terms that a scattered addition adds to each element."""
    sources = [operand.numel for operand in call.operands[1:] if operand.dtype.is_floating_point]
    return max(sources, default=0) // max(call.numel, 1)


def _is_product(call: Call) -> bool:
    return call.operator == "mul" and len(call.operands) == 2


def _previous(call: Call) -> Call | None:
    """Return the low-precision addition, or product, whose result ``call`` adds to or multiplies."""
    if _is_product(call):
        makers = (origin(operand).producer for operand in call.operands)
        return next((maker for maker in makers if maker is not None and maker.is_low and _is_product(maker)), None)
    return next((maker for maker in map(_addition, call.operands) if maker is not None and maker.is_low), None)


def _addition(operand: Operand) -> Call | None:
    """Return the addition that produced a tensor, with at most one product in between."""
    call = origin(operand).producer
    if call is not None and call.operator in ("mul", "div"):
        makers = (origin(factor).producer for factor in call.operands)
        call = next((maker for maker in makers if maker is not None and maker.operator in _ADDITIONS), None)
    return call if call is not None and call.operator in _ADDITIONS else None


def _adds_gradients(call: Call, before: Call) -> bool:
    """Return whether a term is a gradient of a backward pass, also after unscaling, casts and products with numbers."""
    todo = [operand.producer for operand in call.operands]
    checked: set[Call] = {before}
    while todo:
        maker = todo.pop()
        if maker is None or maker in checked or maker.number < before.number:
            continue
        if maker.backward:
            if maker.numel == call.numel:
                return True
            continue
        checked.add(maker)
        if maker.operator in TRANSPARENT or maker.operator in _LINEAR or maker.operator in _UNSCALING:
            todo += [operand.producer for operand in maker.operands]
    return False


def _depends(call: Call, before: Call) -> bool:
    """Return whether a term or a factor depends on the previous result, other than by sums and products."""
    todo = list(call.operands)
    checked: set[Call] = {before}
    while todo:
        maker = todo.pop().producer
        if maker is None or maker in checked or maker.number < before.number:
            continue
        checked.add(maker)
        if maker.operator in TRANSPARENT or maker.operator in _LINEAR:
            todo += maker.operands
        elif any(before in ancestors(operand, since=before.number) for operand in maker.operands):
            return True
    return False
