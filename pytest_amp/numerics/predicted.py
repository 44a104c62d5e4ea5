"""Compare each tensor, and each operator of the step, with the rounding oracle's prediction."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_amp.account import receive
from pytest_amp.cases import Case, Realised, expect_python
from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.draws import Draws
from pytest_amp.numerics.nonfinite import NotFinite, origin_in_step
from pytest_amp.numerics.oracle import Trace, observed_step, trace_of, verdict
from pytest_amp.numerics.oracle.observer import ObservedCall
from pytest_amp.numerics.oracle.operation import LOW
from pytest_amp.numerics.prediction import reference_step
from pytest_amp.numerics.realised import realise
from pytest_amp.precision import FP16
from pytest_amp.record import Observe

__tracebackhide__ = is_usage_error


def check_operators(case: Case, conditions: Conditions, calls: Sequence[ObservedCall], observe: Observe) -> None:
    """Check that each operator of a real step, on its real inputs, rounds as its model says; see ``oracle.verdict``."""
    low = conditions.precision.dtype
    trace = trace_of(case.name, calls, conditions.device.type)
    shares = trace.signatures()
    least = min(shares.values(), default=1.0)
    observe(f"{case.name}/summary.agreement", least, kind="ratio", unit="share of elements")
    unknown = {call.operator for call in calls if call.problem is not None}
    if unknown:
        observe(f"{case.name}/summary.not_modelled", ", ".join(sorted(unknown)), kind="state")
    faults = verdict.faults(calls, low, conditions.tolerance_scale)
    if faults:
        worst = faults[0]
        also = sorted({fault.operator for fault in faults} - {worst.operator})
        more = f" (and {len(also)} more: {', '.join(also[:3])})" if also else ""
        what = f"{case.name}: {worst.operator} in {worst.place} under {conditions} {worst.what}{more}"
        raise fault_failure(what, worst, conditions)


def fault_failure(what: str, fault: verdict.Fault, conditions: Conditions) -> AmpFailure:
    """Return the failure of ``what``, caused by an operator that does not follow its model."""
    return AmpFailure(
        what, label_before="model", before=fault.model[:160], now=conditions.now(fault.what), likely=fault.likely
    )


def trace(case: Case, conditions: Conditions) -> Trace:
    """Trace a step of ``case``; see ``Amp.trace``.

    In fp16 the loss scale is GradScaler's first, or the largest that keeps gradients finite.
    """
    expect_python(case.realise(seed=conditions.seed).model, case=case.name)
    realised = realise(case, conditions)
    loss_scale = 1.0
    if conditions.precision.name == FP16.name:
        try:
            loss_scale = reference_step(
                case, realised, conditions.device, conditions.precision, seed=conditions.seed
            ).loss_scale
        except NotFinite as failure:  # not finite at any scale: the trace ends at the origin
            receive(failure)
    device, low = conditions.device, conditions.precision.dtype
    origin = origin_in_step(
        case, realised, device.torch_device, conditions.region, seed=conditions.seed, loss_scale=loss_scale
    )
    calls = observed_step(
        case,
        device,
        low,
        seed=conditions.seed,
        loss_scale=loss_scale,
        realised=realised,
        until=None if origin is None else origin.number,
    )
    notes = realised.draws.notes() if isinstance(realised.draws, Draws) else ()
    if origin is not None:
        notes = (*notes, f"ends where the step is no longer finite: {origin}")
    return trace_of(f"{case.name} under {conditions}", calls, device.type, notes)


def likely_operator(case: Case, realised: Realised, conditions: Conditions, loss_scale: float) -> str | None:
    """Return the first operator that does not follow its model, as the likely cause of a failure; None if all do."""
    low = conditions.precision.dtype
    calls = observed_step(case, conditions.device, low, seed=conditions.seed, loss_scale=loss_scale, realised=realised)
    faults = verdict.faults(calls, low, conditions.tolerance_scale)
    return first_fault(faults) if faults else None


def first_fault(faults: Sequence[verdict.Fault]) -> str:
    """Return the worst of some faults as the likely cause of a failure."""
    worst = faults[0]
    return f"{worst.operator} in {worst.place}: {worst.what}, {worst.likely}"


def rounds_by_itself(case: Case, realised: Realised, conditions: Conditions) -> bool:
    """Return whether the model uses a low dtype even without autocast, so that its step does not measure float32."""
    low = conditions.precision.dtype
    try:
        calls = observed_step(case, conditions.device, low, seed=conditions.seed, autocast=False, realised=realised)
    except Exception:  # noqa: BLE001  # it runs only inside a region, since it has low-precision tensors or queries autocast
        return True
    return any(result.dtype in LOW for call in calls for result in call.results)
