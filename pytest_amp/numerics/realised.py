"""Build models and batches for the steps of a check, with the random numbers that all of its steps share."""

from __future__ import annotations

from dataclasses import replace

from pytest_amp.cases import Case, Realised, passes
from pytest_amp.devices import DeviceKind
from pytest_amp.failure import is_usage_error
from pytest_amp.numerics.conditions import Conditions, runs_under
from pytest_amp.numerics.draws import Draws
from pytest_amp.numerics.step import Step, run_float32, run_step

__tracebackhide__ = is_usage_error


def realise(case: Case, conditions: Conditions, *, seed: int | None = None) -> Realised:
    """Build the model and the batch of a case, and record the draws of its step in mixed precision.

    ``seed`` is by default that of ``conditions``. Raises DoesNotRun for a case that does not run in float32,
    AmpFailure for one that does not run in mixed precision.
    """
    seed = conditions.seed if seed is None else seed
    realised = case.realise(seed=seed)
    draws = _record_draws(case, realised, conditions, seed)
    if draws.not_replayed:
        again = _record_draws(case, realised, conditions, seed, apart=frozenset(draws.not_replayed))
        draws = draws if again.problem else again
    return replace(realised, draws=draws) if draws.are_drawn else realised


def realise_and_run_float32(case: Case, conditions: Conditions) -> tuple[Realised, Step]:
    """Build the model and the batch of a case, with its recorded draws, and run its step in float32.

    On a CPU, a case whose float32 step draws no random numbers is not recorded. A float32 step that drew the recorded
    numbers by itself is not run again. Raises the exceptions of ``realise``.
    """
    device = conditions.device.torch_device
    draws, fp32 = Draws(), None
    if conditions.device.kind is DeviceKind.CPU:
        realised = case.realise(seed=conditions.seed)
        with draws.recording():
            fp32 = run_float32(case, replace(realised.on(device), draws=draws), seed=conditions.seed)
        if not draws.recorded and not draws.not_replayed:
            return realised, fp32
    realised = realise(case, conditions)
    if fp32 is None or not (isinstance(realised.draws, Draws) and realised.draws.same_as(draws)):
        fp32 = run_float32(case, realised.on(device), seed=conditions.seed)
    return realised, fp32


def _record_draws(
    case: Case, realised: Realised, conditions: Conditions, seed: int, *, apart: frozenset[str] = frozenset()
) -> Draws:
    """Run one step in mixed precision under a recorder."""
    draws = Draws(apart)
    copied = replace(realised.on(conditions.device.torch_device), draws=draws)
    try:
        with draws.recording():
            run_step(case, copied, conditions.region, seed=seed, replay=False)
    except Exception as error:  # whatever a model raises, under a recorder or without one
        if passes(error):
            raise
        device = conditions.device.torch_device
        run_float32(case, realised.on(device), seed=seed)
        with runs_under(case, conditions):
            run_step(case, realised.on(device), conditions.region, seed=seed)
        return Draws(apart, problem=type(error).__name__)
    draws.finish(conditions.device.torch_device)
    return draws
