"""Random numbers of a training, the same in the run in mixed precision and in that in float32."""

from __future__ import annotations

from dataclasses import replace

from pytest_amp.account import receive
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics.draws import Draws
from pytest_amp.training.trajectory import Setup, run


def recorded_draws(setup: Setup) -> Draws:
    """Record what the training in mixed precision draws, for the runs in float32 to replay.

    Two steps tell whether the training draws at all, before it is run as a whole.
    """
    draws = _record(replace(setup, steps=2), Draws())
    if draws.not_replayed:
        draws = _record(replace(setup, steps=2), Draws(frozenset(draws.not_replayed)))
    if not draws.recorded or setup.steps == 2:
        return draws
    return _record(setup, Draws(draws.apart))


def _record(setup: Setup, draws: Draws) -> Draws:
    """Record a training; of one that fails nothing, since the checked runs fail in their own words."""
    try:
        with draws.scope(), draws.recording():
            run(setup, low=True)
    except AmpFailure as failure:
        receive(failure)
        return Draws()
    except Exception:  # noqa: BLE001  # whatever the model or the step raises, they raise again
        return Draws()
    return draws
