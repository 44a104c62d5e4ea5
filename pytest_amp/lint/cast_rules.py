"""Rules about casts and constants of the program: rounded inputs, buffers and gradients, epsilons and masks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch

from pytest_amp.lint.finding import Severity
from pytest_amp.lint.place import Place
from pytest_amp.lint.program import PRODUCTS, TRANSPARENT, Call, Operand, Program, Role, ancestors, origin
from pytest_amp.lint.suspect import Suspect
from pytest_amp.numerics.oracle.operation import LOW
from pytest_amp.precision import dtype_name

_WIDE = (torch.float32, torch.float64)
#: Operators that change no value, or whose float32 result, rounded, equals that of the low-precision kernel.
_EXACT = frozenset({
    *("relu", "threshold", "neg", "abs", "cat", "stack", "index_select", "masked_fill", "slice_scatter", "repeat"),
    *("max_pool2d_with_indices", "constant_pad_nd", "flip", "roll", "index", "gather"),
})  # fmt: skip
_LINEAR = TRANSPARENT | {"add", "sub", "rsub", "mul", "div", "neg", "mean", "sum", "stack", "cat"}
_ACTIVATIONS = frozenset({"gelu", "silu", "sigmoid", "tanh", "leaky_relu", "elu", "hardtanh", "hardswish", "mish"})


def hard_casts(plain: Program) -> Iterator[Suspect]:
    """Yield casts to a low dtype that a program also makes without autocast: their dtype is hard-coded."""
    if any(call.is_low and call.autocast is not None for call in plain.forward):
        return
    for call in plain.forward:
        if call.is_own_cast and call.is_low and _is_wide(call.source) and not _feeds_low(call, plain):
            yield own_cast(call, is_weighed=_feeds_product(call, plain))


def input_casts(program: Program, calls: Sequence[Call]) -> Iterator[Suspect]:
    """Yield low-precision casts of the batch that reach the model, in a step or an evaluation.

    A target may be cast to the dtype of the model's output: it reaches no weight.
    """
    for call in calls:
        source = call.source if call.is_own_cast and call.is_low else None
        if source is not None and _is_wide(source) and _feeds_low(call, program) is False:
            leaf = origin(source).leaf
            if leaf is not None and leaf.role is Role.BATCH and _reaches_model(call, program):
                yield own_cast(call)


def _reaches_model(call: Call, program: Program) -> bool:
    """Return whether the model, the case's loss or a product uses a tensor, or what is computed from it."""
    uses = program.uses(call)
    return any(use.module is not None or use.in_loss or use.operator in PRODUCTS for use in uses)


def _feeds_product(call: Call, program: Program) -> bool:
    """Return whether a product uses a low-precision tensor, or what is computed from it in that dtype."""
    return any(use.operator in PRODUCTS for use in program.uses(call, lambda use: use.is_low))


def own_cast(call: Call, *, is_weighed: bool = True) -> Suspect:
    """Return the suspect of a cast with a hard-coded dtype; ``is_weighed`` is True if a product uses the tensor."""
    source = call.source
    leaf = None if source is None else origin(source).leaf
    name = "a tensor" if leaf is None else f"the {leaf.role.value} {leaf.name}".rstrip()
    if leaf is not None and leaf.role is Role.BATCH:
        name = f"the input {leaf.name}".rstrip()
    dtype = dtype_name(call.dtype or torch.float16)
    return Suspect(
        "own-cast",
        f"{name} is cast to {dtype} by the program ({_method(call)}), with or without a region: "
        + ("without one, float32 weights refuse it" if is_weighed else "its values are rounded in a float32 run, too"),
        "Remove the cast: autocast casts the inputs of products itself; or cast to the dtype of another tensor"
        if is_weighed
        else "Remove the cast, or cast to the dtype of another tensor",
        call.place,
        module=call.module,
        number=call.number,
    )


def _method(call: Call) -> str:
    methods = {"half": ".half()", "bfloat16": ".bfloat16()", "copy_": ".copy_()"}
    return methods.get(call.function, f".{call.function}({dtype_name(call.dtype or torch.float16)})")


def _is_wide(source: Operand | None) -> bool:
    """Return whether a tensor is float32 or wider, and was computed without low-precision tensors."""
    if source is None or source.dtype not in _WIDE:
        return False
    start = origin(source)
    if start.dtype in LOW:
        return False
    return not any(call.is_low or any(x.is_low for x in call.operands) for call in ancestors(source))


def _feeds_low(call: Call, program: Program) -> bool:
    """Return whether all consumers of a cast also use low-precision tensors of the model, such as frozen weights."""
    consumers = [consumer for consumer in program.consumers.get(call, []) if not consumer.backward]
    if not consumers:
        return False
    return all(
        any(x.producer is not call and origin(x).is_low and origin(x).leaf is not None for x in consumer.operands)
        for consumer in consumers
    )


def rounded_values(program: Program, calls: Sequence[Call]) -> Iterator[Suspect]:
    """Yield float32 values that are rounded to a low dtype and widened again where they are used."""
    for call in calls:
        if not (call.is_own_cast and call.is_low and not call.backward and _is_wide(call.source)):
            continue
        consumers = [consumer for consumer in program.consumers.get(call, []) if not consumer.backward]
        if (
            consumers
            and all(consumer.is_own_cast and consumer.dtype in _WIDE for consumer in consumers)
            and call.numel > 1
        ):
            yield Suspect(
                "rounded-values",
                f"float32 values are rounded to {dtype_name(call.dtype or program.low)} ({_method(call)}), and widened "
                "again where they are used",
                "Remove the cast to the low dtype",
                call.place,
                module=call.module,
                number=call.number,
            )


def rounded_buffers(calls: Sequence[Call], lines: Mapping[str, Place]) -> Iterator[Suspect]:
    """Yield low-precision buffers and constants that are widened where they are used.

    ``lines`` are the places that created low-precision buffers, by name.
    """
    for call in calls:
        source = call.source if call.is_own_cast and not call.is_low and call.dtype in _WIDE else None
        widened = [] if source is None else [source]
        if source is None and call.dtype in _WIDE and call.operator in ("mul", "add", "sub", "div"):
            widened = [operand for operand in call.operands if operand.is_low]
        for operand in widened:
            start = origin(operand)
            leaf = start.leaf
            if not start.is_low or start.producer is not None or start.numel < 2 or start.requires_grad:
                continue
            if leaf is not None and leaf.role is not Role.BUFFER:
                continue
            dtype = dtype_name(start.dtype)
            name = "a constant" if leaf is None else f"the buffer {leaf.name}"
            place = call.place if leaf is None else lines.get(leaf.name, call.place)
            yield Suspect(
                "rounded-buffer",
                f"{name} is {dtype}, rounded when it was made, and is widened where it is used"
                + (f", at {call.place.line}" if call.place.line != place.line else ""),
                "Keep it in float32: register the buffer without a cast",
                place,
                module=call.module,
                number=call.number,
            )


def useless_widening(program: Program, calls: Sequence[Call], plain: Program) -> Iterator[Suspect]:
    """Yield casts to float32 without any computation before the values are low-precision again.

    A cast that also widens in the run without a region acts on low-precision values of the model's own.
    """
    needed = {call.place.line for call in plain.forward if call.is_own_cast and call.source and call.source.is_low}
    for call in calls:
        source = call.source
        if not call.is_own_cast or call.backward or call.dtype is not torch.float32 or source is None:
            continue
        if call.place.library or call.place.line in needed:
            continue
        if source.is_low and call.autocast is not None and source.numel > 1:
            path = _useless(call, program, source.dtype, activations=1)
            if path:
                names = [name for name in dict.fromkeys(path) if name not in TRANSPARENT]
                between = f" but {', '.join(names)}" if names else ""
                yield Suspect(
                    "useless-widening",
                    f"{dtype_name(source.dtype)} values are widened to float32 and cast back: nothing{between} is "
                    "computed in between, which rounds the same without the casts",
                    "Remove the cast to float32: it costs copies and memory, and gains no accuracy",
                    call.place,
                    module=call.module,
                    number=call.number,
                )


def _useless(call: Call, program: Program, low: torch.dtype, *, activations: int) -> list[str] | None:
    """Return the operators between a cast and the casts back; None if the widening has an effect."""
    consumers = [
        consumer for consumer in program.consumers.get(call, []) if not consumer.backward and not consumer.again
    ]
    if not consumers:
        return None
    chain: list[str] = []
    for consumer in consumers:
        if consumer.is_cast and consumer.dtype is low:
            chain.append("_to_copy")
            continue
        left = activations - (consumer.operator in _ACTIVATIONS)
        operands = [operand for operand in consumer.operands if operand.producer is not call]
        if left < 0 or any(operand.dtype.is_floating_point for operand in operands):
            return None
        if (
            consumer.operator not in _EXACT
            and consumer.operator not in _ACTIVATIONS
            and consumer.operator not in TRANSPARENT
        ):
            return None
        below = _useless(consumer, program, low, activations=left)
        if below is None:
            return None
        chain += [consumer.operator, *below]
    return chain


def rounded_gradients(program: Program) -> Iterator[Suspect]:
    """Yield casts in a user's backward pass or hook that round float32 gradients, widened again later."""
    for call in program.calls:
        if not call.backward or not call.is_cast or call.dtype not in _WIDE:
            continue
        source = call.source
        if source is None or not source.is_low:
            continue
        for before in _by_user(source):
            if before.is_own_cast and before.is_low and _is_gradient(before.source):
                dtype = dtype_name(before.dtype or program.low)
                yield Suspect(
                    "backward-rounds",
                    f"the backward pass of {before.place.function.rpartition('.')[0] or 'a function'} rounds float32 "
                    f"gradients to {dtype}, and they are widened again",
                    "Return gradients in the dtype of what forward was given: remove the cast",
                    before.place,
                    module=before.module,
                    number=before.number,
                )


def rounded_step_gradients(program: Program, calls: Sequence[Call]) -> Iterator[Suspect]:
    """Yield casts by which a training step rounds float32 gradients that it widens again, after sums and products."""
    for call in calls:
        if call.is_own_cast and call.is_low and call.numel > 1 and _is_gradient(call.source):
            uses = program.uses(call, lambda use: use.is_low and not use.writes and use.operator in _LINEAR)
            if any(use.is_cast and use.dtype in _WIDE for use in uses):
                yield Suspect(
                    "rounded-values",
                    f"gradients are rounded to {dtype_name(call.dtype or program.low)} ({_method(call)}), and widened "
                    "again where they are used",
                    "Remove the cast to the low dtype: average and add gradients in float32",
                    call.place,
                    number=call.number,
                )


def _by_user(operand: Operand) -> Iterator[Call]:
    """Yield the calls of the user's own backward pass that computed ``operand``."""
    todo, line = [operand], set()
    while todo:
        call = todo.pop().producer
        if call is not None and call not in line and call.backward and call.function == "own":
            line.add(call)
            yield call
            todo += () if call.operator in PRODUCTS else call.operands


def _is_gradient(source: Operand | None) -> bool:
    """Return whether a tensor is float32 and was computed in the backward pass; saved tensors were not."""
    return source is not None and source.dtype in _WIDE and source.producer is not None and source.producer.backward


def constants(calls: Sequence[Call], *, is_finite: bool) -> Iterator[Suspect]:
    """Yield constants that are zero, or infinite, in the dtype they are used in; errors if the step is nonfinite."""
    severity = Severity.WARNING if is_finite else Severity.ERROR
    for call in calls:
        if call.backward or call.again or not call.is_low or (call.is_cast and not call.is_own_cast):
            continue
        dtype = dtype_name(call.dtype or torch.float16)
        name = f"{call.function} " if not call.is_direct and call.function else ""
        by = "cast" if call.is_cast else f"{name}{call.operator}"
        for number in dict.fromkeys(call.values.vanished):
            advice = "Compute in float32 (x.float()) where the epsilon is used, or take one of 1e-4 or more"
            if number > 0.5:
                what = f"a bound of {number!r} ({name}{call.operator}) is 1 in {dtype}, and guards nothing"
                advice = "Compute in float32 (x.float()) where the bound is used, or take a loss of logits without one"
            else:
                epsilon = f"an epsilon of {_written(number)} ({name}{call.operator})"
                what = f"{epsilon} is 0 in {dtype}: it underflows, and guards nothing"
            yield _constant("vanished-epsilon", what, advice, call, severity)
        for number in dict.fromkeys(call.values.beyond):
            noun, advice = (
                "mask or constant",
                "Use masked_fill with torch.finfo(scores.dtype).min, or compute in float32",
            )
            if call.operator in ("mul", "div"):
                noun, advice = "factor or divisor", "Compute in float32 (x.float()), or with smaller values"
            what = (
                f"a {noun} of {_written(number)} ({by}) is {'-' if number < 0 else ''}inf "
                f"in {dtype}, which ends at {torch.finfo(call.dtype or torch.float16).max:.5g}"
            )
            yield _constant("constant-out-of-range", what, advice, call, severity)


def _constant(kind: str, what: str, advice: str, call: Call, severity: Severity) -> Suspect:
    return Suspect(
        kind,
        what,
        advice,
        call.place,
        severity=severity,
        module=call.module,
        number=call.number,
        detail="" if severity is Severity.WARNING else "the step is not finite",
    )


def _written(number: float) -> str:
    """Return a number as programs write it: ``1e-8``."""
    text = f"{number:g}"
    mantissa, mark, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if mark else text


def overflows(calls: Sequence[Call], known: Collection[Place], *, is_finite: bool) -> Iterator[Suspect]:
    """Yield operators that produce infinities from finite values in the dtype of the run.

    They are errors, but for casts in a finite step: a mask of large values is infinite in the dtype, which is harmless
    unless a whole row has it.
    """
    for call in calls:
        if call.backward or call.again or not call.values.infinite or call.values.beyond or call.place in known:
            continue
        if call.is_cast and not call.is_own_cast:
            continue
        dtype = dtype_name(call.dtype or torch.float16)
        yield Suspect(
            "overflow",
            f"{'a cast' if call.is_cast else call.operator} overflows: finite values become infinite in {dtype}, which "
            f"ends at {torch.finfo(call.dtype or torch.float16).max:.5g}",
            "Compute in float32 (x.float() before it), or with smaller values",
            call.place,
            severity=Severity.WARNING if call.is_cast and is_finite else Severity.ERROR,
            module=call.module,
            number=call.number,
            detail="" if is_finite else "the step is not finite",
        )
