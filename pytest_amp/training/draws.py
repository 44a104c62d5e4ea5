"""Random numbers of a training, equal in the runs in mixed precision and in float32."""

from __future__ import annotations

from dataclasses import replace

from pytest_amp.account import receive
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics.draws import Draws
from pytest_amp.training.trajectory import Setup, run


def recorded_draws(setup: Setup) -> Draws:
    """Record the random numbers of the mixed-precision training, for the float32 runs to replay.

    Two steps show whether the training draws any, before it is run as a whole.
    """
    draws = _record(replace(setup, steps=2), Draws())
    if draws.not_replayed:
        draws = _record(replace(setup, steps=2), Draws(frozenset(draws.not_replayed)))
    if not draws.recorded or setup.steps == 2:
        return draws
    return _record(setup, Draws(draws.apart))


def _record(setup: Setup, draws: Draws) -> Draws:
    """Record a training; if it fails, record nothing, since the checked runs report the failure themselves."""
    try:
        with draws.scope(), draws.recording():
            run(setup, low=True)
    except AmpFailure as failure:
        receive(failure)
        return Draws()
    except Exception:  # noqa: BLE001  # any error of the model or the step, which the checked runs raise again
        return Draws()
    return draws
