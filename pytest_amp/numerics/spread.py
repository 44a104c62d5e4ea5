"""The errors of a case over seeds: what a comparison with an earlier run holds against chance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from pytest_amp.account import receive
from pytest_amp.cases import Case
from pytest_amp.failure import AmpFailure, is_misuse
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.prediction import exact_step, step_errors
from pytest_amp.numerics.realised import realise
from pytest_amp.numerics.step import Step, run_wide

__tracebackhide__ = is_misuse

#: By tensor, E(amp, exact) and E(amp, fp32).
Errors = tuple[dict[str, float], dict[str, float]]


def other_draws(case: Case, where: Conditions, step: Callable[[int], Step]) -> list[Errors]:
    """The errors of ``case`` with the numbers of the seeds after the run's own, of which ``where.draws`` is one.

    ``step(seed)`` runs the case in mixed precision. Empty where it does not run, or has no float64, with one of them.
    """
    try:
        return [*_drawn(case, where, step)]
    except AmpFailure as failure:
        receive(failure)
        return []


def _drawn(case: Case, where: Conditions, step: Callable[[int], Step]) -> Iterator[Errors]:
    for seed in range(where.seed + 1, where.seed + where.draws):
        realised = realise(case, where, seed=seed)
        exact = exact_step(case, realised, where.device, seed=seed)
        wide = run_wide(case, realised.on(where.device.torch_device), seed=seed)
        made = step(seed)
        yield step_errors(made, exact, exact), step_errors(made, wide, exact)


def over_seeds(drawn: Iterable[float | None]) -> tuple[float, ...] | None:
    """One error with the numbers of each of these seeds; None where there are none, or one has no finite error."""
    found = [math.inf if each is None else each for each in drawn]
    return tuple(found) if found and all(map(math.isfinite, found)) else None


def worst_share(plain: Mapping[str, float], allowed: Mapping[str, float]) -> float:
    """The largest of the errors ``plain``, in units of what is ``allowed`` for each; infinite where one is missing."""
    return max(plain.get(name, math.inf) / most for name, most in allowed.items())
