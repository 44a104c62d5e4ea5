"""Linter: turns a recorded run into findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pytest_amp.cases import Case, MakeOptimizer
from pytest_amp.lint import arithmetic_rules, cast_rules, regions_rules, state_rules
from pytest_amp.lint.finding import Finding
from pytest_amp.lint.program import TRANSPARENT, Call, Program
from pytest_amp.lint.runs import CaseRecord, TrainingRecord, record_case, record_evaluation, record_training
from pytest_amp.lint.suspect import Suspect, findings_of
from pytest_amp.numerics.callers import definition_of
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.oracle.operation import LOW
from pytest_amp.training.trajectory import TrainingStep


def findings_of_case(case: Case, conditions: Conditions) -> tuple[Finding, ...]:
    """Return the findings of one forward and backward pass of ``case`` in mixed precision.

    The pass is recorded operator by operator on the device, and also a forward pass without a region. An exception of
    the user's code in mixed precision is passed on, unless rounded, infinite or otherwise suspect values before it may
    explain it: these findings are returned.
    """
    record = record_case(case, conditions)
    if record.error is None:
        return findings_of(_of_case(record))
    findings = findings_of(_arithmetic_and_constants(record.program, record.program.forward))
    if not findings:
        raise record.error
    return findings


def findings_of_training(
    case: Case, conditions: Conditions, train: TrainingStep, *, optimizer: MakeOptimizer | None = None
) -> tuple[Finding, ...]:
    """Return the findings of three iterations of a user's training step, as ``amp.check_training`` calls it.

    Findings of the model and the case's loss are left to ``findings_of_case``. An exception of the user's code is
    passed on.
    """
    record = record_training(case, conditions, train, optimizer=optimizer)
    return findings_of(_of_training(record))


def findings_of_evaluation(
    case: Case, conditions: Conditions, evaluate: Callable[[Any], Any], *, trained_low: bool
) -> tuple[Finding, ...]:
    """Return the findings of a user's evaluation.

    ``evaluate`` receives an object with ``model``, ``batch``, ``loss()`` and ``autocast()``, and returns metrics by
    name. ``trained_low`` is True if the training runs in mixed precision. An exception of the user's code is passed on.
    """
    record = record_evaluation(case, conditions, evaluate)
    program = record.program
    calls = _outside(program)
    suspects = [
        *regions_rules.evaluation_suspects(program, definition_of(evaluate), trained_low=trained_low),
        *regions_rules.region_suspects(_without_case(program)),
        *state_rules.changed_parameters(record.parameters, definition_of(evaluate)),
        *state_rules.metrics(program, record.metrics),
        *_arithmetic_and_constants(program, calls),
        *cast_rules.input_casts(program, calls),
    ]
    return findings_of(suspects)


def _of_case(record: CaseRecord) -> Iterator[Suspect]:
    program = record.program
    calls = program.forward
    places = {tensor.name: tensor.place for tensor in record.buffers if tensor.place is not None}
    loss, is_low = _maker(record.loss), record.loss_dtype in LOW
    roots = [call for call in (record.loss, loss) if call is not None]
    yield from regions_rules.region_suspects(program, record.plain)
    yield from regions_rules.nothing_low(program)
    yield from regions_rules.threads(program)
    yield from state_rules.low_parameters(record.parameters, record.case.build)
    yield from state_rules.low_buffers(record.buffers, record.written)
    yield from state_rules.rounded_updates(calls)
    yield from state_rules.replaced_buffers(record.written)
    losses = list(state_rules.loss_outside([call for call in calls if call.in_loss]))
    yield from losses
    arithmetic = list(arithmetic_rules.arithmetic_suspects(program, calls, roots, loss if is_low else None))
    yield from _without_losses(arithmetic, losses)
    constants = list(cast_rules.constants(calls, is_finite=record.is_finite))
    yield from constants
    known = [suspect.place for suspect in (*constants, *arithmetic)]
    yield from cast_rules.overflows(calls, known, is_finite=record.is_finite)
    rounded = [*cast_rules.rounded_values(program, calls), *cast_rules.rounded_buffers(calls, places)]
    yield from rounded
    if not record.parameters:
        lines = {suspect.place.line for suspect in rounded}
        yield from (suspect for suspect in cast_rules.hard_casts(record.plain) if suspect.place.line not in lines)
    yield from cast_rules.useless_widening(program, calls, record.plain)
    yield from cast_rules.rounded_gradients(program)


def _of_training(record: TrainingRecord) -> Iterator[Suspect]:
    program, definition = record.program, definition_of(record.train)
    calls = _outside(program)
    roots = [call for event in program.backwards for call in (event.root, _maker(event.root)) if call is not None]
    low = [_maker(event.root) for event in program.backwards if event.dtype in LOW]
    outside = [call for call in low if call is not None and not call.in_loss and call.module is None]
    yield from regions_rules.step_suspects(program, definition)
    yield from regions_rules.region_suspects(_without_case(program))
    yield from state_rules.low_parameters(record.parameters)
    if record.parameters:  # values computed from them are low-precision for that reason
        return
    yield from state_rules.low_states(record.states, definition)
    yield from state_rules.low_averages(
        program, record.averages, {state.place for state in record.states if state.place}
    )
    losses = list(state_rules.loss_outside(calls))
    yield from losses
    low_loss = outside[0] if outside else None
    yield from _without_losses(_arithmetic_and_constants(program, calls, roots, low_loss), losses)
    yield from cast_rules.input_casts(program, calls)
    yield from cast_rules.rounded_step_gradients(program, calls)
    yield from state_rules.mixed_gradients(program)
    yield from state_rules.idle_steps(record.idle)


def _arithmetic_and_constants(
    program: Program, calls: Sequence[Call], roots: Sequence[Call] = (), low_loss: Call | None = None
) -> Iterator[Suspect]:
    """Yield low-precision arithmetic, constants and overflows of a step's or an evaluation's own code."""
    arithmetic = list(arithmetic_rules.arithmetic_suspects(program, calls, roots, low_loss))
    yield from arithmetic
    constants = list(cast_rules.constants(calls, is_finite=True))
    yield from constants
    by_user = [call for call in calls if not call.place.is_torch]  # scaled values that overflow are found by the scaler
    yield from cast_rules.overflows(by_user, [suspect.place for suspect in (*arithmetic, *constants)], is_finite=True)


def _without_losses(suspects: Iterable[Suspect], losses: Sequence[Suspect]) -> Iterator[Suspect]:
    """Return suspects without low-precision losses in functions whose loss is outside of the region."""
    keys = {suspect.place.key for suspect in losses}
    return (suspect for suspect in suspects if suspect.kind != "low-loss" or suspect.place.key not in keys)


def _outside(program: Program) -> list[Call]:
    """Return the forward calls of a step or an evaluation itself, outside of the model and the case's loss."""
    return [call for call in program.forward if call.module is None and not call.in_loss]


def _without_case(program: Program) -> Program:
    """Return the program without the regions that the model and the case's loss open."""
    regions = [event for event in program.regions if event.module is None and not event.in_loss]
    return Program(program.low, program.calls, regions, program.backwards, program.scaled)


def _maker(call: Call | None) -> Call | None:
    """Return the call that produced a loss, before any casts."""
    while call is not None and call.operator in TRANSPARENT and call.source is not None:
        before = call.source.producer
        if before is None:
            break
        call = before
    return call
