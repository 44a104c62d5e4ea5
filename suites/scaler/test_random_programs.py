"""Whatever the order of calls, the real scaler does what the reference model does.

The model is ``pytest_amp/scaler/reference.py``; what it states is stated by torch/amp/grad_scaler.py.
"""

from __future__ import annotations

import pytest

from pytest_amp.amp import Amp
from pytest_amp.scaler.programs import Program

from .training import ScalerFactory

_PROGRAMS, _CALLS = 25, 60


@pytest.mark.parametrize("growth_interval", [1, 2, 5])
def test_random_programs_agree_with_the_model(amp: Amp, amp_scaler: ScalerFactory, growth_interval: int) -> None:
    """Scale, tracker, errors and their words, gradients and parameters, after each call."""
    calls: dict[str, int] = {}
    for seed in range(_PROGRAMS):
        scaler = amp_scaler(init_scale=2.0**12, growth_interval=growth_interval)
        program = Program(amp.device, amp.precision, scaler, seed=amp.config.seed * _PROGRAMS + seed)
        program.run(_CALLS)
        for call in program.log:
            kind = call.split()[0].partition("(")[0]
            calls[kind] = calls.get(kind, 0) + 1
    assert calls.keys() >= {"backward", "plant", "unscale_", "step", "update", "zero_grad", "load_state_dict", "pickle"}
