"""Rules about state beyond one operator: parameters, buffers, optimizer state, averages, metrics, gradients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import torch

from pytest_amp.lint.finding import Severity
from pytest_amp.lint.place import Place
from pytest_amp.lint.program import PRODUCTS, TRANSPARENT, Call, Operand, Program, Role, ancestors
from pytest_amp.lint.runs import LowTensor
from pytest_amp.lint.suspect import Suspect
from pytest_amp.numerics.callers import definition_of
from pytest_amp.precision import dtype_name
from pytest_amp.text.amounts import counted

#: Operators that update a tensor.
_UPDATES = frozenset({"add", "sub", "lerp", "mul", "addcmul", "addcdiv", "copy", "div"})
#: Operators between a reduction and a metric: its root, its logarithm, its difference from 1.
_OF_ONE_VALUE = frozenset({
    *("sub", "rsub", "neg", "abs", "sqrt", "pow", "exp", "log", "log2", "log10", "log1p", "clamp", "clamp_min"),
    *("reciprocal", "rsqrt"),
})  # fmt: skip
_NO_ARITHMETIC = ("_local_scalar_dense", "zeros_like", "ones_like", "empty_like", "full_like", "new_zeros")


def low_parameters(tensors: Sequence[LowTensor], build: Callable[..., object] | None = None) -> Iterator[Suspect]:
    """Yield the parameters that an optimizer updates in a low dtype, of a model that ``build`` makes."""
    if not tensors:
        return
    first = tensors[0]
    more = f" and {counted(len(tensors) - 1, 'more parameter')} are" if len(tensors) > 1 else " is"
    dtype = dtype_name(first.dtype)
    method = "half()" if first.dtype is torch.float16 else "bfloat16()"
    yield Suspect(
        "low-parameters",
        f"the parameter {first.name}{more} {dtype} ({method} of the model or a part of it, a dtype= or a default "
        "dtype), and an optimizer updates them: small updates of a weight round away"
        + _builder(build, first.place or Place()),
        f"Keep trained parameters in float32, without {method}, dtype= or another default dtype: autocast casts "
        "weights where they are used",
        first.place or Place(),
        severity=Severity.ERROR,
        module=first.name.rpartition(".")[0],
    )


def _builder(build: Callable[..., object] | None, place: Place) -> str:
    """Return the function that builds the model, as the end of a sentence, if the place is in another function.

    It may have set the default dtype. The line of a lambda, in the test, says nothing.
    """
    name, line = getattr(build, "__qualname__", "").rpartition("<locals>.")[2], definition_of(build)
    if not name or not line or name == "<lambda>" or place.function.startswith(name):
        return ""
    return f"; the model is built by {name} ({line})"


def changed_parameters(tensors: Sequence[LowTensor], definition: str) -> Iterator[Suspect]:
    """Yield the parameters that an evaluation has left in a low dtype."""
    if tensors:
        first = tensors[0]
        yield Suspect(
            "low-parameters",
            f"the evaluation leaves the parameter {first.name} of the model in {dtype_name(first.dtype)}, and the "
            "training goes on with it",
            "Evaluate under autocast, or cast a copy of the model",
            first.place_or(definition),
            severity=Severity.ERROR,
            module=first.name.rpartition(".")[0],
        )


def low_buffers(tensors: Sequence[LowTensor], written: Collection[str]) -> Iterator[Suspect]:
    """Yield low-precision buffers that the step updates."""
    for tensor in tensors:
        if tensor.name in written:
            yield Suspect(
                "low-buffer",
                f"the buffer {tensor.name} is {dtype_name(tensor.dtype)}, and each step updates it: an average or a "
                "sum in which small updates round away",
                "Keep buffers that are updated in float32",
                tensor.place or Place(),
                module=tensor.name.rpartition(".")[0],
            )


def rounded_updates(calls: Sequence[Call]) -> Iterator[Suspect]:
    """Yield copies of low-precision values into a float32 buffer, from whose earlier value they were computed."""
    for call in calls:
        if call.operator != "copy" or not call.writes or call.source is None or not call.operands:
            continue
        buffer, source = call.operands[0].leaf, call.source
        if buffer is None or buffer.role is not Role.BUFFER or call.operands[0].is_low or not source.is_low:
            continue
        used = (operand.leaf for maker in ancestors(source) for operand in maker.operands)
        if buffer in used:
            yield _rounded_update(buffer.name, call, source)


def replaced_buffers(written: Mapping[str, Call | None]) -> Iterator[Suspect]:
    """Yield float32 buffers that a step replaces by low-precision values, computed from the earlier ones."""
    for name, call in written.items():
        if call is None or call.writes or not call.is_cast or call.is_low:
            continue
        source = call.source
        if source is None or not source.is_low:
            continue
        leaves = (operand.leaf for maker in ancestors(source) for operand in maker.operands)
        if any(leaf is not None and leaf.role is Role.BUFFER and leaf.name == name for leaf in leaves):
            yield _rounded_update(name, call, source)


def _rounded_update(name: str, call: Call, source: Operand) -> Suspect:
    return Suspect(
        "low-buffer",
        f"the update of the buffer {name} is computed in {dtype_name(source.dtype)}: in an average or a "
        "sum, small updates round away",
        "Compute the update in float32: widen its terms (.float()), and leave the region for its products",
        call.place,
        module=call.module,
        number=call.number,
    )


def low_states(tensors: Sequence[LowTensor], definition: str) -> Iterator[Suspect]:
    """Yield low-precision tensors of the optimizer's state."""
    if not tensors:
        return
    first = tensors[0]
    entries = list(dict.fromkeys(tensor.name.partition(" of ")[0] for tensor in tensors))
    yield Suspect(
        "low-optimizer-state",
        f"the optimizer's state ({', '.join(entries[:3])}) is {dtype_name(first.dtype)}: small updates of averages "
        "round away",
        "Keep the state in float32",
        first.place_or(definition),
        dtype=first.dtype,
    )


def low_averages(
    program: Program, retained: Sequence[LowTensor], optimizer_places: Collection[Place]
) -> Iterator[Suspect]:
    """Yield low-precision tensors that later iterations update from their own values."""
    named = {tensor.place.line: tensor for tensor in retained if tensor.place is not None}
    for call in program.forward:
        if call.operator not in _UPDATES or call.module is not None or call.in_loss or not call.operands:
            continue
        target = call.operands[0]
        if call.place in optimizer_places or not target.is_low or target.leaf is not None:
            continue
        before = _earlier(call)
        if before is None:
            continue
        tensor = named.get(call.place.line)
        what = f"iteration.{tensor.name.partition(']')[0]}]" if tensor is not None else "a tensor"
        yield Suspect(
            "low-average",
            f"{what} that the step keeps, an average or a sum, is {dtype_name(target.dtype)} and is updated "
            f"({call.operator}) in each iteration: small updates round away",
            "Keep averages and sums in float32",
            before.place if before.place.line else call.place,
            number=before.number,
        )


def _earlier(call: Call) -> Call | None:
    """Return the call of an earlier iteration that created the tensor that ``call`` updates; None without one."""
    maker = call.operands[0].producer
    first = maker
    while maker is not None and maker.is_low_update and maker.operands[0].producer is not None:
        maker = maker.operands[0].producer
        first = maker
    return first if first is not None and first.stage < call.stage else None


def loss_outside(calls: Sequence[Call]) -> Iterator[Suspect]:
    """Yield loss operators that compute on low-precision values after the autocast region has ended."""
    for call in calls:
        if call.module is not None or call.autocast is not None or call.operator in TRANSPARENT:
            continue
        if call.operator in _NO_ARITHMETIC or _is_scaling(call):
            continue
        low = [operand for operand in call.operands if operand.is_low and operand.requires_grad]
        if low and call.dtype is not None and not call.backward and _of_region(low):
            yield Suspect(
                "loss-outside-region",
                f"the loss is computed outside of the region on {dtype_name(low[0].dtype)} values ({{operators}}): "
                "autocast does not widen them there",
                "Compute the loss inside of the region, or widen the model's output first (output.float())",
                call.place,
                severity=Severity.ERROR,
                operators=(call.operator.removeprefix("_"),),
                number=call.number,
            )


def _is_scaling(call: Call) -> bool:
    """Return whether the call is in torch's code and multiplies or divides: GradScaler scales the loss."""
    return call.place.is_torch and call.operator in ("mul", "div")


def _of_region(operands: Sequence[Operand]) -> bool:
    """Return whether one of the tensors depends on a low-precision product, which was computed under autocast."""
    for operand in operands:
        for call in ancestors(operand, stop=PRODUCTS):
            if call.operator in PRODUCTS and call.is_low:
                return True
    return False


def metrics(program: Program, returned: Sequence[tuple[str, Call | None, torch.dtype]]) -> Iterator[Suspect]:
    """Yield low-precision metrics of an evaluation, with the place that accumulates them."""
    ends = [(f"the metric {name}".rstrip(), call, dtype) for name, call, dtype in returned]
    for read in program.forward:
        if read.operator == "_local_scalar_dense" and read.module is None and read.operands:
            operand = read.operands[0]
            if operand.is_low and not read.place.is_torch and not read.place.library and _is_reduced(operand.producer):
                ends.append(("a metric that Python reads", operand.producer, operand.dtype))
    for name, call, dtype in ends:
        maker = _summed(call)
        if maker is not None and (maker.in_loss or maker.module is not None):  # part of the case, linted separately
            continue
        yield Suspect(
            "low-metric",
            f"{name} of the evaluation is {dtype_name(dtype)}{_how(maker)}",
            _advice_for_metric(maker),
            Place() if maker is None else maker.place,
            number=0 if maker is None else maker.number,
        )


def _advice_for_metric(maker: Call | None) -> str:
    if maker is not None and maker.is_cast:
        return "Keep the metric in float32: remove the cast"
    if maker is None or maker.operator in ("add", "lerp"):
        return "Add up metrics in float32 (loss.float()), or as Python numbers"
    return "Compute the metric in float32: widen what it is computed from first (x.float())"


def _how(maker: Call | None) -> str:
    if maker is None:
        return ""
    if maker.is_cast:
        return ": it is cast to that dtype"
    if maker.operator in ("add", "lerp"):
        return f": it is accumulated ({maker.operator}) in that dtype, in which a sum stops growing"
    return f": it is computed ({maker.operator.removeprefix('_')}) in that dtype"


def _is_reduced(call: Call | None) -> bool:
    maker = _summed(call)
    return maker is not None and maker.operator in ("add", "sum", "mean", "nll_loss_forward", "lerp")


def _summed(call: Call | None) -> Call | None:
    """Return the call that computes a metric, before divisions by counts and arithmetic with single values."""
    result = call
    while result is not None and result.is_low and _is_between(result):
        before = next((x.producer for x in result.operands if x.is_low and x.producer is not None), None)
        if before is None or not before.is_low:
            break
        result = before
    return result


def _is_between(call: Call) -> bool:
    if call.operator in TRANSPARENT or call.operator in ("div", "mul"):
        return True
    return call.operator in _OF_ONE_VALUE and call.numel == 1 and all(operand.numel == 1 for operand in call.operands)


def mixed_gradients(program: Program) -> Iterator[Suspect]:
    """Yield backward passes of an unscaled loss in a step with a scaled one, and unscaled terms of a scaled loss."""
    scaled = set(program.scaled)
    events = [(event, _is_scaled(event.root, scaled)) for event in program.backwards]
    for event, is_scaled in events:
        if is_scaled and event.root is not None:
            for addition in _mixed_sums(event.root, scaled):
                yield Suspect(
                    "mixed-gradients",
                    "a loss that is not scaled is added to one that is: the scaler divides the gradients of both by "
                    "the scale, and this part is lost",
                    "Add the losses first, and scale their sum: scaler.scale(loss + penalty)",
                    addition.place,
                    severity=Severity.ERROR,
                    number=addition.number,
                )
        if is_scaled or event.root is None or not any(other for item, other in events if item.stage == event.stage):
            continue
        yield Suspect(
            "mixed-gradients",
            "backward is called on a loss that is not scaled, beside one that is: the scaler divides gradients of "
            "both by the scale, and this part is lost",
            "Scale each loss: scaler.scale(loss).backward()",
            event.place,
            severity=Severity.ERROR,
            number=event.number,
        )


def idle_steps(places: Sequence[Place]) -> Iterator[Suspect]:
    """Yield optimizer steps for which no parameter has a gradient."""
    if places:
        yield Suspect(
            "no-gradient",
            "the optimizer steps without any gradient: zero_grad() was called between backward() and the step, or no "
            "backward pass reaches its parameters",
            "Call optimizer.zero_grad() before the forward pass, and step behind backward()",
            places[0],
            severity=Severity.ERROR,
        )


def _mixed_sums(root: Call, scaled: Collection[Call]) -> Iterator[Call]:
    """Yield additions of a scaled and an unscaled term, between the scaled losses and the root of a backward pass."""
    todo, observed = [root], set(scaled)
    while todo:
        call = todo.pop()
        if call in observed or call.operator not in ("add", "sub", "rsub", "mul", "div", "sum", "stack", *TRANSPARENT):
            continue
        observed.add(call)
        terms = [operand for operand in call.operands if operand.requires_grad and operand.producer is not None]
        if call.operator in ("add", "sub", "stack"):
            parts = [any(ancestor in scaled for ancestor in ancestors(operand)) for operand in terms]
            if any(parts) and not all(parts):
                yield call
        todo += [operand.producer for operand in terms if operand.producer is not None]


def _is_scaled(root: Call | None, scaled: Collection[Call]) -> bool:
    if root is None:
        return False
    if root in scaled or any(call in scaled for operand in root.operands for call in ancestors(operand)):
        return True
    # Manual loss scaling: a multiplication by a power of two, 4 or more.
    by = root.numbers[0] if root.operator == "mul" and root.numbers else 0.0
    return by >= 4 and by == 2.0 ** round(torch.tensor(by).log2().item())
