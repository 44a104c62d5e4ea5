"""Table that ``amp.trace`` returns: every operator of a step with its dtypes, its rule and its rounding."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from pytest_amp.cases import Case, Realised
from pytest_amp.devices import Device
from pytest_amp.numerics.oracle.module_places import Places
from pytest_amp.numerics.oracle.observer import ObservedCall, Observer
from pytest_amp.numerics.step import run_step
from pytest_amp.precision import dtype_name
from pytest_amp.rules import spec

#: The number of elements below which no share is computed.
FEW = 16


@dataclass(frozen=True)
class Row:
    """Calls of one operator at one place on the same dtypes.

    ``share`` is the share of all elements that equal the model's (the rounding signature), and ``error`` the largest
    relative L2 error of a result. ``rule`` is the rule of the enclosing operator that has one. ``hollow`` is whether a
    float32 result has low-precision values only; ``problem`` is the reason why an operator is not modelled.
    """

    module: str
    direction: str
    operator: str
    given: tuple[str, ...]
    returned: tuple[str, ...]
    rule: str | None
    model: str
    calls: int
    elements: int
    share: float
    error: float
    hollow: bool
    problem: str | None = None


@dataclass(frozen=True)
class Trace:
    """Rows of a step in the order in which the operators first ran, forward pass first."""

    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Row]:
        """Iterate over the rows."""
        return iter(self.rows)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def signatures(self) -> dict[str, float]:
        """Return the share of elements that equal the model's, by operator and direction (``addmm/forward``).

        Operators with fewer than ``FEW`` elements are left out: a scalar sum may cancel.
        """
        equal: dict[str, float] = {}
        elements: dict[str, int] = {}
        for row in self.rows:
            key = f"{row.operator.removeprefix('aten::')}/{row.direction}"
            equal[key] = equal.get(key, 0.0) + row.share * row.elements
            elements[key] = elements.get(key, 0) + row.elements
        return {key: equal[key] / elements[key] for key in equal if elements[key] >= FEW}

    def __str__(self) -> str:
        """Return the table."""
        head = ("module", "pass", "operator", "dtypes", "rule", "model", "calls", "equal", "error", "")
        lines = [head, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        text = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        return "\n".join([self.title, *text, *self.notes])


def _cells(row: Row) -> tuple[str, ...]:
    note = "hollow" if row.hollow else f"not modelled: {row.problem}" if row.problem else ""
    rule = "" if row.rule is None else row.rule.removeprefix("aten::")
    return (
        row.module or "-",
        row.direction,
        row.operator.removeprefix("aten::"),
        f"{' '.join(dict.fromkeys(row.given))} -> {' '.join(dict.fromkeys(row.returned))}",
        rule,
        row.model,
        str(row.calls),
        f"{row.share:.4f}",
        f"{row.error:.1e}",
        note,
    )


def observed_step(  # noqa: PLR0913  # keywords of one run
    case: Case,
    device: Device,
    low: torch.dtype,
    *,
    seed: int,
    loss_scale: float = 1.0,
    autocast: bool = True,
    realised: Realised | None = None,
    until: int | None = None,
) -> tuple[ObservedCall, ...]:
    """Compare every operator call of one real step of ``case`` on ``device`` with its model.

    The step uses ``realised``, by default a newly built model and batch, and draws its own random numbers. Calls after
    call number ``until`` are not observed, and exceptions that the model raises there are ignored.
    """
    copied = (realised or case.realise(seed=seed)).on(device.torch_device)
    observer = Observer(device.type, low, Places(copied.model), until=until)

    def region() -> contextlib.AbstractContextManager[object]:
        return device.autocast(low) if autocast else contextlib.nullcontext()

    with observer.on(spec.expected(device.type, torch.__version__)):
        try:
            run_step(case, copied, region, seed=seed, loss_scale=loss_scale, replay=False)
        except Exception:
            if not observer.is_over:
                raise
    return tuple(observer.observed_calls)


def trace_of(title: str, calls: Sequence[ObservedCall], device_type: str, notes: Sequence[str] = ()) -> Trace:
    """Format ``calls`` as a table, with ``notes`` below it."""
    rules = spec.expected(device_type, torch.__version__)
    rows: dict[tuple[object, ...], Row] = {}
    for call in sorted(calls, key=lambda observed_call: observed_call.place.direction.value, reverse=True):
        row = _row(call, rules)
        key = (row.module, row.direction, row.operator, row.given, row.returned, row.rule)
        rows[key] = _joined(rows[key], row) if key in rows else row
    return Trace(title, tuple(rows.values()), tuple(notes))


def _row(call: ObservedCall, rules: dict[str, spec.Rule]) -> Row:
    elements = sum(result.elements for result in call.results)
    operator = call.place.operator
    return Row(
        module=call.place.module,
        direction=call.place.direction.value,
        operator=call.operator,
        given=tuple(dtype_name(dtype) for dtype in call.given),
        returned=tuple(dtype_name(result.dtype) for result in call.results),
        rule=f"{operator}: {rules[operator].name.value}" if operator in rules else None,
        model=call.model.name.value,
        calls=1,
        elements=elements,
        share=sum(result.equal for result in call.results) / elements if elements else 1.0,
        error=max((result.error for result in call.results), default=0.0),
        hollow=any(result.hollow for result in call.results),
        problem=call.problem,
    )


def _joined(a: Row, b: Row) -> Row:
    elements = a.elements + b.elements
    return replace(
        a,
        calls=a.calls + b.calls,
        elements=elements,
        share=(a.share * a.elements + b.share * b.elements) / elements if elements else 1.0,
        error=max(a.error, b.error),
        hollow=a.hollow or b.hollow,
        problem=a.problem or b.problem,
    )
