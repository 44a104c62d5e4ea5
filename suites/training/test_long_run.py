"""Long runs: after a thousand steps bf16 weights stop learning, since updates round away, and the remedies continue.

The study itself, with more steps and seeds, is in docs/lab/training.md.
"""

from __future__ import annotations

import pytest

from pytest_amp.amp import SuiteAmp
from pytest_amp.training.study import STORAGES, Trained, train

# It requests bf16 itself: the test compares storages, not dtypes.
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
    # Half of the gap of bf16 weights is more than the gap of either remedy.
    gap = low.final - masters.final
    assert gap > 0.05 * masters.final, "bf16 weights learn as well as float32 masters here"
    assert stochastic.final - masters.final < gap / 2
    assert kahan.final - masters.final < gap / 2
