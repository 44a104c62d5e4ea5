"""Measure the errors of a case over several seeds, by which a comparison with an earlier run accounts for chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from pytest_amp.account import receive
from pytest_amp.cases import Case
from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.prediction import exact_step, step_errors
from pytest_amp.numerics.realised import realise
from pytest_amp.numerics.step import Step, run_float32

__tracebackhide__ = is_usage_error

#: E(amp, exact) by tensor, and E(amp, fp32) by tensor.
Errors = tuple[dict[str, float], dict[str, float]]


def other_draws(case: Case, conditions: Conditions, step: Callable[[int], Step]) -> list[Errors]:
    """Measure the errors of ``case`` with the ``conditions.draws - 1`` seeds that follow the seed of the run.

    ``step(seed)`` runs the case in mixed precision. The result is empty if, with any seed, the case does not run or has
    no float64 reference.
    """
    try:
        return [*_drawn(case, conditions, step)]
    except AmpFailure as failure:
        receive(failure)
        return []


def _drawn(case: Case, conditions: Conditions, step: Callable[[int], Step]) -> Iterator[Errors]:
    for seed in range(conditions.seed + 1, conditions.seed + conditions.draws):
        realised = realise(case, conditions, seed=seed)
        exact = exact_step(case, realised, conditions.device, seed=seed)
        fp32 = run_float32(case, realised.on(conditions.device.torch_device), seed=seed)
        result = step(seed)
        yield step_errors(result, exact, exact), step_errors(result, fp32, exact)


def over_seeds(drawn: Iterable[float | None]) -> tuple[float, ...] | None:
    """Return the error of each seed; None if there are no seeds, or if an error is not finite."""
    values = [math.inf if value is None else value for value in drawn]
    return tuple(values) if values and all(map(math.isfinite, values)) else None


def worst_share(plain: Mapping[str, float], allowed: Mapping[str, float]) -> float:
    """Return the largest of the errors ``plain`` in units of the ``allowed`` errors; inf if one is missing."""
    return max(plain.get(name, math.inf) / most for name, most in allowed.items())
