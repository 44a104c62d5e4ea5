"""Random programs: whatever the order of calls, the real scaler does what the reference model does.

The model is ``pytest_amp/scaler/reference.py``, after torch/amp/grad_scaler.py. The programs are drawn by hypothesis,
from ``--amp-seed``; one that disagrees is shrunk.
"""

from __future__ import annotations

import pytest

from pytest_amp.amp import SuiteAmp
from pytest_amp.extras import imported

_RULES = {
    "scale tensor",
    "scale list",
    "scale nested",
    "scale generator",
    "backward",
    "plant",
    "clip value",
    "clip norm",
    "unscale_",
    "step",
    "step with a closure",
    "iteration",
    "update",
    "update with a float",
    "update with a tensor",
    "update with a int",
    "update with a vector",
    "update with a requires grad",
    "setters",
    "zero_grad",
    "load_state_dict",
    "load nothing",
    "pickle",
}


def _run(amp: SuiteAmp, programs: int) -> None:
    machine = imported("pytest_amp.scaler.machine", what="random programs cannot be drawn", extra="suites")
    calls = machine.run_programs(amp.device, amp.precision, programs=programs, seed=amp.config.seed)
    assert calls.keys() == _RULES, f"never called: {sorted(_RULES - calls.keys())}"
    assert calls.total() > 20 * programs, "the programs are short"


def test_random_programs_agree_with_the_model(amp: SuiteAmp) -> None:
    """Run 100 programs: scale, tracker, stages, errors and their words, gradients and parameters, after each call."""
    _run(amp, 100)


@pytest.mark.amp_long
def test_many_random_programs_agree_with_the_model(amp: SuiteAmp) -> None:
    """Run 2000 programs of up to 60 calls."""
    _run(amp, 2000)
