"""Long runs: after a thousand steps bf16 weights have stopped learning, because their updates are rounded away.

Stochastic rounding and Kahan summation keep learning. docs/lab/training.md has the full study, with more steps and
seeds.
"""

from __future__ import annotations

import pytest

from pytest_amp.amp import SuiteAmp
from pytest_amp.training.study import STORAGES, Trained, train

# The storages are bf16 whatever the autocast dtype is: the test compares storages, not autocast dtypes.
pytestmark = [pytest.mark.amp(devices=["cpu", "cuda"], dtypes=["bf16"]), pytest.mark.amp_long]

_STEPS = 1000


def _outcome(amp: SuiteAmp, name: str) -> Trained:
    (storage,) = [storage for storage in STORAGES if storage.name == name]
    return train(storage, steps=_STEPS, seed=amp.config.seed, device=amp.device.torch_device)


def test_bf16_weights_need_masters_or_a_remedy(amp: SuiteAmp) -> None:
    masters = _outcome(amp, "float32 masters and states")
    low = _outcome(amp, "bf16 weights and states")
    stochastic = _outcome(amp, "bf16 weights, float32 states, stochastic rounding")
    kahan = _outcome(amp, "bf16 weights, float32 states, Kahan sum")
    for name, accuracy in (("masters", masters), ("low", low), ("stochastic", stochastic), ("kahan", kahan)):
        amp.observe(f"long run/{name}, final loss", accuracy.final, kind="ratio")
        amp.observe(f"long run/{name}, updates that round away", accuracy.lost, kind="ratio")
    assert masters.lost < 0.01, "updates round away from float32 masters"
    assert low.lost > 0.3, "updates do not round away from bf16 weights: the comparison shows nothing"
    # Each remedy closes more than half of the gap between bf16 weights and float32 master weights.
    gap = low.final - masters.final
    assert gap > 0.05 * masters.final, "bf16 weights learn as well as float32 masters here"
    assert stochastic.final - masters.final < gap / 2
    assert kahan.final - masters.final < gap / 2
