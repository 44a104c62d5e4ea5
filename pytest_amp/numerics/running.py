"""Whether what a check met is the case itself, which does not run in mixed precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pytest_amp.cases import Case
from pytest_amp.failure import Misuse, is_misuse
from pytest_amp.numerics.conditions import Conditions, runs_under
from pytest_amp.numerics.step import run_step, run_wide

__tracebackhide__ = is_misuse


@contextmanager
def told_of(case: Case, where: Conditions) -> Iterator[None]:
    """What torch raises within is told of ``case``, if a step of it alone raises, too: without autocast, or with it.

    Raises DoesNotRun for the first, AmpFailure for the second. Where the step runs, what was raised goes on: it came
    of something else, such as a training step of the user's own.
    """
    try:
        yield
    except Misuse:
        raise
    except RuntimeError as error:
        raised = error
    else:
        return
    realised = case.realise(seed=where.seed)
    run_wide(case, realised.on(where.device.torch_device), seed=where.seed)
    with runs_under(case, where):
        run_step(case, realised.on(where.device.torch_device), where.region, seed=where.seed)
    raise raised
