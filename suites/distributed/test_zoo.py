"""Every kind of network on two ranks that have the same batch: outputs and gradients are those of one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import lacks_lstm_kernel, zoo
from pytest_amp.distributed import RankGroup
from pytest_amp.numerics import run_step
from pytest_amp.run.targets import Target

from . import ranks_zoo
from .expectations import expect_ranks_agree, expect_same, needs_streams, settings
from .models import deterministic


def _cases(target: Target) -> Iterator[object]:
    """Yield cases that have parameters and kernels on this machine; the wider zoo is marked for the long tier."""
    ordinary = {case.name for case in zoo()}
    for name, case in ranks_zoo.CASES.items():
        lacking = name == "lstm" and lacks_lstm_kernel(target.device.type, target.precision.name)
        if not lacking and any(True for _ in case.build().parameters()):
            yield pytest.param(name, id=name, marks=[] if name in ordinary else [pytest.mark.amp_long])


@pytest.mark.parametrize("parallel", ["ddp", "fully_shard"])
@pytest.mark.amp_parametrize("name", _cases)
def test_a_step_is_that_of_one_process(amp: SuiteAmp, ranks: RankGroup, name: str, parallel: str) -> None:
    """Compare bit for bit: the mean of two equal gradients is the gradient."""
    if parallel == "fully_shard":
        needs_streams(amp)
    subject = f"{name}, {parallel}"
    answers = ranks.ask(ranks_zoo.step, settings(amp, case=name, parallel=parallel))
    expect_ranks_agree(amp, answers, "gradients", subject=subject)
    case = ranks_zoo.CASES[name]
    instance = case.realise(seed=amp.config.seed).on(amp.device.torch_device)
    with deterministic():
        alone = run_step(case, instance, amp.autocast, seed=amp.config.seed)
    gradients = {name: value for name, value in alone.gradients.items() if value is not None}
    expect_same(amp, answers[0]["outputs"], dict(alone.outputs), subject=subject)
    expect_same(amp, answers[0]["gradients"], gradients, subject=subject)
