"""Rules about low-precision arithmetic that should be float32: norms, exponentials, angles, sums, losses."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch

from pytest_amp.lint.finding import Severity
from pytest_amp.lint.index_rules import rounded_integers
from pytest_amp.lint.loss_terms import REDUCTIONS, is_narrowed, is_reduced, is_statistic, loss_terms
from pytest_amp.lint.probability_rules import LOG_OF_LOGITS, LOGARITHMS, advice_for_logarithm, rounded_probabilities
from pytest_amp.lint.program import PRODUCTS, TRANSPARENT, Call, Operand, Program, near, origin
from pytest_amp.lint.running_sums import LONG, running_sums
from pytest_amp.lint.suspect import Suspect
from pytest_amp.lint.values import PERIODIC
from pytest_amp.numerics.oracle.operation import LOW

_EXPONENTIALS = ("exp", "exp2", "expm1")
_VARIANCES = ("var", "std", "var_mean", "std_mean", "linalg_vector_norm")
_CUMULATIVE = ("cumsum", "cumprod", "logcumsumexp")
_ROOTS = ("sqrt", "rsqrt", "pow", "reciprocal")
#: Elementwise operators between an exponential and the sum over it, or between statistics and their root.
_BETWEEN = frozenset({
    *("mul", "div", "add", "sub", "masked_fill", "where", "native_dropout", "clamp", "clamp_min", "neg", "index"),
    *("gather", "tril", "triu", "nan_to_num", "maximum", "unsqueeze", "cat", "stack", "bernoulli", "rsub", "addcmul"),
})  # fmt: skip
#: Error of an angle, in radians, from which its sine counts as wrong.
_ANGLE = 0.03
_WIDEN_NORM = "Widen first (x = x.float()), take the statistics in float32, and cast the result back (.to(dtype))"
_NO_PRODUCT = (
    "Sum the squares elementwise, (x.float() ** 2).sum(-1): autocast casts the operands of a product, even float32 ones"
)
_WIDEN_LOSS = (
    "Compute the loss in float32: widen what it is computed from first, as the model's output (output.float())"
)
#: Message and advice for a low-precision loss, or a term of it, that the model itself computes.
_TERM = (
    "a term of the loss is computed in {dtype} ({operators})",
    "Compute it in float32: widen what it is computed from first (x.float())",
)


def arithmetic_suspects(
    program: Program, calls: Sequence[Call], roots: Collection[Call], low_loss: Call | None = None
) -> Iterator[Suspect]:
    """Yield low-precision arithmetic among ``calls`` that should be float32.

    ``roots`` are the calls that produced the differentiated losses, and ``low_loss`` is a low-precision one of them.
    """
    terms = loss_terms(roots)
    if low_loss is not None:
        yield _suspect("low-loss", low_loss, (low_loss.operator,))
    for call in calls:
        if call.operator in PERIODIC:
            yield from _angles(call)
        yield from rounded_probabilities(call)
        yield from rounded_integers(call)
        if call.is_direct:
            yield from _differences(call, program)
            yield from _low_squares(call, program)
        if not call.is_low:
            continue
        yield from _positions(call)
        if call in terms and call.numel == 1 and is_narrowed(call):
            yield _suspect("low-loss", call, ("cast",))
        if call in terms and is_reduced(call) and (call.is_direct or "loss" in call.operator):
            yield _suspect("low-loss", call, (call.operator,))
        yield from _softmax(call, program)
        if not call.is_direct:
            continue
        yield from _statistics(call, program)
        yield from _exponentials(call)
    for call, detail in running_sums(calls):
        yield _suspect("low-running-sum", call, (call.operator,), detail)


def _suspect(  # noqa: PLR0913  # keywords of a suspect
    kind: str,
    call: Call,
    operators: tuple[str, ...],
    detail: str = "",
    *,
    is_primary: bool = False,
    is_supporting: bool = False,
) -> Suspect:
    what, advice = _TERM if kind == "low-loss" and call.module is not None else _KINDS[kind]
    overflows = call.values.infinite
    if overflows:
        detail = f"{call.operator} overflows to infinity"
    return Suspect(
        kind,
        what,
        advice,
        call.place,
        severity=Severity.ERROR if overflows else Severity.WARNING,
        module=call.module,
        operators=operators,
        dtype=call.dtype if call.is_low else None,
        number=call.number,
        detail=detail,
        is_primary=is_primary,
        is_supporting=is_supporting and not overflows,
    )


_KINDS = {
    "low-norm": ("statistics of a norm ({operators}) are computed in {dtype}", _WIDEN_NORM),
    "low-softmax": (
        "exponentials and their sum ({operators}), a softmax by hand, are computed in {dtype}",
        "Use softmax, log_softmax or logsumexp of float32 values: torch.softmax(x.float(), -1)",
    ),
    "low-log": ("a logarithm ({operators}) is computed in {dtype}", LOG_OF_LOGITS),
    "low-power": (
        "a power with a low-precision exponent ({operators}) is computed in {dtype}",
        "Compute the exponent in float32: base ** exponent.float()",
    ),
    "low-loss": ("the loss is computed in {dtype} ({operators})", _WIDEN_LOSS),
    "low-angles": (
        "angles of sin and cos, positions times frequencies ({operators}), are computed in {dtype}",
        "Multiply float32 positions by float32 frequencies, outside of autocast, and cast sin and cos alone",
    ),
    "low-running-sum": (
        "a running sum or product ({operators}) is accumulated in {dtype}, in which small terms round away",
        "Start from float32 zeros (dtype=torch.float32), or widen what is summed",
    ),
    "rounded-positions": (
        "positions, whole numbers, are rounded to {dtype} ({operators}), which does not have all of them",
        "Keep positions in float32 or as integers, and cast what is computed of them",
    ),
}


def _statistics(call: Call, program: Program) -> Iterator[Suspect]:
    """Yield means of squares, variances, centred values and norms."""
    name = call.operator
    if name in _VARIANCES and call.operands:
        yield _suspect("low-norm", call, (_NAMES.get(name, name),))
    elif name in REDUCTIONS and call.operands and call.numel < call.operands[0].numel:
        square = _square(call.operands[0])
        if square is not None and square.is_low and is_statistic(call, program):
            yield _suspect("low-norm", square, ("square",))
            yield _suspect("low-norm", call, (f"{name} of squares",))
    elif name in ("bmm", "mm", "dot", "mv") and _is_square_sum(call, program):
        yield replace(_suspect("low-norm", call, ("sum of squares",)), advice=_NO_PRODUCT)


def _differences(call: Call, program: Program) -> Iterator[Suspect]:
    """Yield differences from a low-precision mean, and variances that are a difference of squares.

    On CUDA autocast computes squares and roots in float32: the mean is then the only statistic that is rounded.
    """
    if call.operator != "sub" or len(call.operands) != 2:
        return
    values, subtrahend = (origin(operand) for operand in call.operands)
    by = subtrahend.producer
    if by is None:
        return
    if by.is_low and _averaged(by) == values.view:
        is_supporting = not _is_variance(call, program)
        yield _suspect("low-norm", by, ("mean",), is_supporting=is_supporting)
        yield _suspect("low-norm", call, ("difference from the mean",), is_supporting=is_supporting)
    mean = _mean_in_square(by) if by.operator in ("mul", "pow") else None
    if mean is not None and (by.is_low or mean.is_low) and _is_mean_of_square(values):
        if not by.is_low:
            yield _suspect("low-norm", mean, ("mean",))
        yield _suspect("low-norm", call, (_DIFFERENCE,), "nearly equal numbers cancel", is_primary=True)


def _low_squares(call: Call, program: Program) -> Iterator[Suspect]:
    """Yield low-precision squares whose sum is float32, by autocast's rules on CUDA or by a cast, and has a root."""
    if call.operator in REDUCTIONS and not call.is_low and call.operands and call.numel < call.operands[0].numel:
        square = _square(call.operands[0])
        if square is not None and square.is_low and square.is_direct and _has_root(call, program):
            yield _suspect("low-norm", square, ("square",))


def _is_variance(difference: Call, program: Program) -> bool:
    """Return whether differences from a mean are squared and summed, also after a cast to float32."""
    todo, users = [difference], program.consumers
    while todo:
        for user in users.get(todo.pop(), []):
            if user.operator in TRANSPARENT:
                todo.append(user)
            elif user.operator == "linalg_vector_norm" or any(
                _sums_squares(call, user) for call in users.get(user, [])
            ):
                return True
    return False


def _sums_squares(call: Call, square: Call) -> bool:
    """Return whether ``call`` sums, or averages, the squares that ``square`` computes."""
    return call.operator in REDUCTIONS and not call.backward and _square(call.operands[0]) is square


_DIFFERENCE = "variance as a difference of squares"
_NAMES = {"linalg_vector_norm": "norm", "var": "variance", "std": "standard deviation", "var_mean": "variance"}


def _averaged(call: Call) -> tuple[object, ...] | None:
    """Return the view whose mean a call computes, as a mean or as a sum that is divided by a number."""
    if call.operator == "div" and len(call.operands) == 1 and call.operands[0].producer is not None:
        call = call.operands[0].producer
        return call.operands[0].view if call.operator == "sum" else None
    return call.operands[0].view if call.operator == "mean" else None


def _square(operand: Operand) -> Call | None:
    """Return the call that produced a square, if any."""
    call = origin(operand).producer
    if call is None:
        return None
    if call.operator == "pow" and call.numbers[:1] == (2.0,) and call.function != "__rpow__":
        return call
    if call.operator == "mul" and len(call.operands) == 2 and _are_same(*call.operands):
        return call
    return None


def _are_same(first: Operand, second: Operand) -> bool:
    if first.view == second.view and first.view[0] is not None:
        return True
    left, right = origin(first), origin(second)
    if left.view == right.view and left.view[0] is not None:
        return first.dtype is second.dtype
    one, other = left.producer, right.producer  # computed twice: (x - mean) * (x - mean)
    if one is None or other is None or one.operator != other.operator or not one.operands:
        return False
    return [operand.view for operand in one.operands] == [
        operand.view for operand in other.operands
    ] and one.operator == "sub"


def _is_mean_of_square(operand: Operand) -> bool:
    call = operand.producer
    if call is not None and call.operator == "div" and len(call.operands) == 1:  # a sum that is divided by a number
        call = origin(call.operands[0]).producer
    return call is not None and call.operator in REDUCTIONS and _square(call.operands[0]) is not None


def _mean_in_square(call: Call) -> Call | None:
    """Return the mean of which a power or a product is the square, if any."""
    square = call.operator == "pow" or (len(call.operands) == 2 and _are_same(*call.operands))
    by = origin(call.operands[0]).producer
    return by if square and by is not None and by.operator in ("mean", "div", "sum") else None


def _is_square_sum(call: Call, program: Program) -> bool:
    """Return whether a product of a tensor with itself is a sum of squares whose root is taken."""
    left, right = (origin(operand) for operand in call.operands[:2])
    if left.view[0] is None or left.view[0] != right.view[0] or left.numel != right.numel:
        return False
    return call.numel < left.numel and _has_root(call, program)


def _has_root(total: Call, program: Program) -> bool:
    """Return whether a root, or a logarithm, of a sum is taken, also after casts and elementwise operators."""
    todo, steps = [total], 0
    while todo and steps < 16:
        steps += 1
        for consumer in program.consumers.get(todo.pop(), []):
            if consumer.operator in _ROOTS or consumer.operator in LOGARITHMS:
                return True
            if not consumer.backward and (consumer.operator in TRANSPARENT or consumer.operator in _BETWEEN):
                todo.append(consumer)
    return False


def _exponentials(call: Call) -> Iterator[Suspect]:
    """Yield logarithms of low-precision values, powers with low exponents, cumulative sums, and logsumexp."""
    name = call.operator
    if name == "logsumexp":
        yield _suspect("low-softmax", call, (name,))
    if name in LOGARITHMS and not call.place.library:
        yield replace(_suspect("low-log", call, (name,)), advice=advice_for_logarithm(call))
    if name == "pow" and call.function in ("pow", "__rpow__") and call.operands and _is_exponent(call):
        yield _suspect("low-power", call, (name,))
    if name in _CUMULATIVE and max(call.operands[0].shape, default=0) >= LONG:
        yield _suspect("low-running-sum", call, (name,))


def _softmax(call: Call, program: Program) -> Iterator[Suspect]:
    """Yield exponentials and their sum (or 1-norm, as in F.normalize(p=1)) if they are divided by the sum."""
    is_norm = call.operator == "linalg_vector_norm" and call.numbers[:1] == (1.0,)
    is_sum = call.operator in REDUCTIONS and call.is_direct
    if not (is_norm or is_sum) or call.numel >= call.operands[0].numel:
        return
    for before in near(call.operands[0], _BETWEEN, 3):
        if _is_exponential(before) and before.is_direct and before.numel > 1 and _normalises(call, program):
            yield _suspect("low-softmax", before, (before.operator,))
            yield _suspect("low-softmax", call, ("sum" if is_norm else call.operator,))


def _is_exponential(call: Call) -> bool:
    """Return whether a call computes low-precision exponentials: ``x.exp()`` or ``2**x``."""
    return call.is_low and (call.operator in _EXPONENTIALS or call.function == "__rpow__")


def _normalises(call: Call, program: Program) -> bool:
    """Return whether a sum of exponentials divides exponentials, is inverted, or is an argument of a logarithm."""
    behind = _behind(call, program)
    for consumer in behind:
        if consumer.operator in (*LOGARITHMS, "reciprocal"):
            return True
        divides = consumer.operator == "div" and len(consumer.operands) == 2
        if divides and origin(consumer.operands[1]).producer in (call, *behind):
            return any(map(_is_exponential, near(consumer.operands[0], _BETWEEN | PRODUCTS | {"sum"}, 6)))
    return False


def _behind(call: Call, program: Program) -> list[Call]:
    """Return the forward calls that use the result of a call, also after casts and elementwise operators."""
    calls: list[Call] = []
    todo = [call]
    while todo and len(calls) < 16:
        for consumer in program.consumers.get(todo.pop(), []):
            if not consumer.backward and not consumer.again and consumer not in calls:
                calls.append(consumer)
                if consumer.operator in TRANSPARENT or consumer.operator in ("add", "clamp", "clamp_min", "maximum"):
                    todo.append(consumer)
    return calls


def _is_exponent(call: Call) -> bool:
    """Return whether the exponent is a low-precision tensor of several elements: ``10000 ** -(x / d)``."""
    if call.function == "__rpow__":
        return call.operands[0].is_low and call.operands[0].numel > 1
    return len(call.operands) == 2 and call.operands[1].is_low and call.operands[1].numel > 1


def _angles(call: Call) -> Iterator[Suspect]:
    """Yield arguments of sin and cos that are so large that their rounding makes the result wrong."""
    if call.backward or call.again or not call.operands:
        return
    argument = call.operands[-1 if call.operator == "polar" else 0]
    dtype, tensor = argument.dtype if argument.is_low else None, argument
    while tensor.producer is not None and tensor.producer.operator in TRANSPARENT:
        source = tensor.producer.source
        if source is None:
            break
        if tensor.is_low:
            dtype = tensor.dtype
        tensor = source
    by = tensor.producer
    if by is not None and by.is_low:
        dtype = by.dtype
    factor = None if by is None or by.operator not in ("mul", "bmm", "mm") else _low_factor(by)
    if dtype is None and factor is not None:
        dtype = factor.dtype
    if dtype not in LOW or dtype is None or call.values.largest * torch.finfo(dtype).eps / 2 < _ANGLE:
        return
    maker = by if by is not None and (by.is_low or tensor.is_low or factor is not None) else call
    what, advice = _KINDS["low-angles"]
    size = f"up to {call.values.largest:.0f}, off by up to {call.values.largest * torch.finfo(dtype).eps / 2:.2g}"
    yield Suspect(
        "low-angles", what, advice, maker.place, module=maker.module, operators=(maker.operator, call.operator),
        dtype=dtype, number=maker.number, detail=size,
    )  # fmt: skip


def _low_factor(call: Call) -> Operand | None:
    """Return a factor of an angle that is low-precision, or rounded before it was widened.

    Buffers, and whole numbers that a cast rounds, are the subjects of other rules.
    """
    for operand in call.operands:
        factor = operand
        while not factor.is_low and factor.producer is not None and factor.producer.operator in TRANSPARENT:
            if factor.producer.source is None:
                break
            factor = factor.producer.source
        by = factor.producer
        is_computed = by is not None and factor.numel > 1 and not (by.is_cast and by.values.inexact)
        if operand.dtype.is_floating_point and factor.is_low and is_computed:
            return factor
    return None


def _positions(call: Call) -> Iterator[Suspect]:
    if call.values.inexact and (call.is_own_cast or call.operator in ("arange", "range")):
        yield _suspect("rounded-positions", call, ("cast" if call.is_cast else call.operator,))
