"""Rules about regions: missing, opened by the model itself, disabled, or in another dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from pytest_amp.lint.finding import Severity
from pytest_amp.lint.place import Place
from pytest_amp.lint.program import PRODUCTS, Call, Program, RegionEvent, Role, origin
from pytest_amp.lint.suspect import Suspect
from pytest_amp.numerics.oracle.operation import LOW
from pytest_amp.precision import dtype_name
from pytest_amp.text.amounts import counted

#: Share of a model's matrix products, by work, from which a region that disables autocast is a finding.
_MOST = 0.5
_OWN = "Leave the region to the caller: remove it, or pass enabled=torch.is_autocast_enabled(device_type)"

_ALONE = "Put the operators alone that need float32 into the disabled region, not the products"
_ENABLE = "Give the region the dtype of the run: autocast is off in a region of any other than bfloat16 and float16"


def products_of(program: Program) -> list[Call]:
    """Return the forward calls of real products; autocast leaves complex ones as they are."""
    calls = (call for call in program.forward if call.operator in PRODUCTS)
    return [call for call in calls if call.dtype is not None and not call.dtype.is_complex]


def region_suspects(program: Program, plain: Program | None = None) -> Iterator[Suspect]:
    """Yield missing or unsuitable regions of the model, the loss or the step; ``plain`` ran without a region."""
    products = products_of(program)
    if not products:
        return
    for event in program.regions:
        if event.is_given or not any(event.number <= call.number < event.until for call in program.forward):
            continue
        inside = [call for call in products if event.number <= call.number < event.until]
        if event.dtype is not None and event.dtype is not program.low:
            if inside:
                yield _other_dtype(program, event, inside)
        elif event.dtype is not None and event.outer is not None and _opens_alone(event, plain):
            yield Suspect(
                "own-region",
                f"{_opener(event)} opens a region of autocast, {dtype_name(event.dtype)}, of its own: a run without "
                "the caller's region is under autocast, too, so that no float32 run of it can be made",
                _OWN,
                event.place,
                module=event.module,
                number=event.number,
            )
    yield from _in_another_dtype(program, products)
    yield from _switched_off(program, products)


def _in_another_dtype(program: Program, products: Sequence[Call]) -> Iterator[Suspect]:
    """Yield products in the other low dtype whose arguments the program casts to it, without a region of that dtype.

    Products of parameters, buffers or inputs that have the dtype are the subject of other rules.
    """
    regions = [event for event in program.regions if event.dtype not in (None, program.low)]
    for call in products:
        if call.dtype not in LOW or call.dtype is program.low or any(_inside_any(event, [call]) for event in regions):
            continue
        sources = [origin(operand) for operand in call.operands]
        if any(source.dtype is call.dtype and source.leaf is not None for source in sources):
            continue
        if not any(source.dtype is not call.dtype for source in sources):
            continue
        other, low = dtype_name(call.dtype or program.low), dtype_name(program.low)
        needs_scaler = call.dtype is torch.float16 and any(operand.requires_grad for operand in call.operands)
        yield Suspect(
            "other-region",
            f"a product runs in {other} in a {low} run: the program casts its arguments to {other} where autocast is "
            "off, by torch.amp.custom_fwd(cast_inputs=...) or by itself"
            + (", and gradients need a scaler" if needs_scaler else ""),
            f"Cast to the dtype of the run, torch.get_autocast_dtype(device_type), which is {low} here, or to float32",
            call.place,
            severity=Severity.ERROR if needs_scaler else Severity.WARNING,
            module=call.module,
            number=call.number,
        )


def threads(program: Program) -> Iterator[Suspect]:
    """Yield modules that run in a thread of their own, in which the region of the caller is not active."""
    for place, module in program.threads:
        yield Suspect(
            "no-region",
            f"{module or 'the model'} is called in a thread in which autocast is off: a region is that of the thread "
            f"that opens it, and this part runs in float32, beside one under autocast({dtype_name(program.low)})",
            "Open the region again in the thread: torch.autocast(device_type, dtype=..., enabled=...), with what "
            "torch.get_autocast_dtype and torch.is_autocast_enabled return outside of it",
            place,
            module=module,
        )


def _opens_alone(event: RegionEvent, plain: Program | None) -> bool:
    """Return whether the region is also active in the run without the caller's region."""
    if plain is None:
        return False
    return any(region.dtype is not None and region.place.line == event.place.line for region in plain.regions)


def _opener(event: RegionEvent) -> str:
    if event.module is not None:
        return f"the forward of {event.module or 'the model'}"
    return "the loss function" if event.in_loss else f"{event.place.function or 'the step'}"


def _other_dtype(program: Program, event: RegionEvent, inside: Sequence[Call]) -> Suspect:
    dtype = event.dtype or program.low
    other, low = dtype_name(dtype), dtype_name(program.low)
    missing = " and gradients need a scaler" if dtype is torch.float16 else ""
    whole = not any(call.dtype is program.low for call in products_of(program))
    return Suspect(
        "other-region",
        f"{_opener(event)} opens a region of autocast in {other} in a {low} run: "
        f"{'all products run' if whole else counted(len(inside), 'product') + ' ran'} in {other}{missing}",
        f"Remove the region, or take the caller's dtype: {low}",
        event.place,
        severity=Severity.ERROR if whole or dtype is torch.float16 else Severity.WARNING,
        module=event.module,
        number=event.number,
    )


def _switched_off(program: Program, products: Sequence[Call]) -> Iterator[Suspect]:
    """Yield the disabled regions around most of a model's products."""
    if any(call.dtype is program.low for call in products):
        total = sum(map(_work, products))
        for event in program.regions:
            wide = [call for call in _inside(event, products) if _has_parameter(call)]
            if event.dtype is None and not event.place.library and sum(map(_work, wide)) >= _MOST * total:
                yield _off(program, event, "most")
        return
    events = [event for event in program.regions if event.dtype is None and _inside(event, products)]
    if events:
        yield _off(program, events[0], "all", severity=Severity.ERROR)


def _inside(event: RegionEvent, products: Sequence[Call]) -> list[Call]:
    return [call for call in products if event.number <= call.number < event.until and call.dtype not in LOW]


def _off(program: Program, event: RegionEvent, share: str, severity: Severity = Severity.WARNING) -> Suspect:
    return Suspect(
        "autocast-off",
        f"{_opener(event)} switches autocast off ({event.off}) around {share} of the products, which run in float32: "
        f"{'none' if share == 'all' else 'few'} run in {dtype_name(program.low)}",
        _ENABLE if event.off.startswith("dtype=") else _ALONE,
        event.place,
        severity=severity,
        module=event.module,
        number=event.number,
    )


def _work(call: Call) -> float:
    sizes = [operand.numel for operand in call.operands[:3] if operand.numel > 1]
    return math.sqrt(math.prod(sizes[-2:]) * max(call.numel, 1)) if sizes else 0.0


def _has_parameter(call: Call) -> bool:
    leaves = [origin(operand).leaf for operand in call.operands]
    return any(leaf is not None and leaf.role is Role.PARAMETER for leaf in leaves)


def nothing_low(program: Program) -> Iterator[Suspect]:
    """Yield the finding of a step in which nothing ran in the low dtype although a region was active."""
    products = products_of(program)
    if any(call.dtype is program.low and not call.is_own_cast for call in program.forward):
        return  # if no product, its arguments are low: torch's math attention computes in float32 and rounds
    if any(event.dtype is None and _inside(event, products) for event in program.regions if not event.is_given):
        return
    if any(event.dtype not in (None, program.low) for event in program.regions if _inside_any(event, products)):
        return
    low = dtype_name(program.low)
    if not products:
        if program.forward:
            yield Suspect(
                "nothing-low",
                f"no operator of the step runs in {low}: the model has no product that autocast casts",
                "Check a model with linear layers, convolutions or attention, or leave this one out",
                program.forward[0].place,
                number=program.forward[0].number,
            )
        return
    first = products[0]
    dtypes = sorted({dtype_name(call.dtype) for call in products if call.dtype is not None})
    what = f"no operator of the step runs in {low} under the region: products run in {', '.join(dtypes)}"
    advice = "Call the model inside of the region, with float32 parameters, on the device of the region"
    if all(call.autocast is None for call in products):
        what += ", where autocast is off although no region disables it"
        advice = "Remove torch.set_autocast_enabled(device_type, False), which stays in effect after the call"
    yield Suspect(
        "nothing-low",
        what,
        advice,
        first.place,
        severity=Severity.ERROR,
        module=first.module,
        number=first.number,
    )


def _inside_any(event: RegionEvent, products: Sequence[Call]) -> bool:
    return any(event.number <= call.number < event.until for call in products)


def step_suspects(program: Program, definition: str) -> Iterator[Suspect]:
    """Yield missing or unsuitable regions of a training step, whose first line is ``definition``."""
    products = products_of(program)
    low = dtype_name(program.low)
    if products and all(call.autocast is None and call.dtype not in LOW for call in products):
        covered = [event for event in program.regions if event.dtype is None and _inside(event, products)]
        if not any(not event.is_given for event in covered):
            first = products[0]
            yield Suspect(
                "no-region",
                f"the training step opens no region: autocast is off in the forward pass, and nothing runs in {low}"
                + _of_other_devices(program)
                + first.place.by_way_of,
                "Call the model and the loss inside of `with iteration.autocast():`",
                Place(line=first.place.caller or definition),
                severity=Severity.ERROR,
                number=first.number,
            )
    else:
        yield from _partly_outside(program, products)
    for event in program.backwards:
        if event.autocast is not None:
            yield Suspect(
                "backward-in-region",
                f"backward is called inside the region: autocast({dtype_name(event.autocast)}) is on in the backward "
                "pass",
                "End the region after the loss, and call backward() behind it",
                event.place,
                severity=Severity.ERROR,
                number=event.number,
            )


def _of_other_devices(program: Program) -> str:
    """Return the regions of other devices than the run's, as the end of a sentence."""
    lines = [f"that at {place.line} is of {device}" for device, place in program.foreign if place.line]
    return f" ({'; '.join(dict.fromkeys(lines))})" if lines else ""


def _partly_outside(program: Program, products: Sequence[Call]) -> Iterator[Suspect]:
    """Yield calls of the model outside of the region in a step whose other calls are inside."""
    for line, calls in _lines_outside(program, products):
        if any(operand.requires_grad for call in calls for operand in call.operands):
            yield Suspect(
                "no-region",
                "the training step calls a part of the model outside of the region: it runs in float32, beside a part "
                f"that runs under autocast({dtype_name(program.low)}){calls[0].place.by_way_of}",
                "Call all of the model inside of the region",
                Place(line=line),
                number=calls[0].number,
            )


def _lines_outside(program: Program, products: Sequence[Call]) -> Iterator[tuple[str, list[Call]]]:
    """Yield the lines that call the model outside of any region, with the products that run in float32 there."""
    by_line: dict[str, list[Call]] = {}
    for call in products:
        by_line.setdefault(call.place.caller, []).append(call)
    for line, calls in by_line.items():
        wide = all(call.autocast is None and call.dtype not in LOW for call in calls)
        off = any(event.dtype is None and _inside(event, calls) for event in program.regions)
        if line and wide and not off and any(call.module is not None for call in calls):
            yield line, calls


def evaluation_suspects(program: Program, definition: str, *, trained_low: bool) -> Iterator[Suspect]:
    """Yield an evaluation in another precision than the training; its first line is ``definition``."""
    products = products_of(program)
    if not products:
        return
    is_low = any(call.dtype in LOW or call.autocast is not None for call in products)
    first = products[0]
    place = Place(line=first.place.caller or definition)
    low = dtype_name(program.low)
    if trained_low and not is_low:
        yield Suspect(
            "evaluation-precision",
            f"the evaluation runs in float32, outside of autocast, whereas the training runs under autocast({low})"
            + first.place.by_way_of,
            "Evaluate inside of `with evaluation.autocast():`, as the model is trained and used",
            place,
            number=first.number,
        )
    if trained_low and is_low:
        for line, calls in _lines_outside(program, products):
            yield Suspect(
                "evaluation-precision",
                "the evaluation calls the model outside of autocast: it runs in float32 there, beside a part that runs "
                f"under autocast({low}){calls[0].place.by_way_of}",
                "Evaluate inside of `with evaluation.autocast():`, as the model is trained and used",
                Place(line=line),
                number=calls[0].number,
            )
    if is_low and not trained_low:
        yield Suspect(
            "evaluation-precision",
            f"the evaluation runs in {low}, whereas the training runs in float32{first.place.by_way_of}",
            "Evaluate outside of autocast, as the model is trained",
            place,
            number=first.number,
        )
