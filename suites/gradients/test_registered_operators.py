"""Each operator with an autocast rule rounds as its model predicts, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.numerics import check_operator, measure_registered
from pytest_amp.rules.named import NAMED, UNREACHABLE
from pytest_amp.rules.samples import has_samples
from pytest_amp.rules.spec import RuleName, expected
from pytest_amp.run.targets import Target

#: Operators with a rule that are left out, each with its reason.
LEFT_OUT = {
    "_grid_sampler_2d_cpu_fallback": "has no float64; grid_sampler_2d, which calls it, is held",
    **({} if torch.version.hip else {"miopen_rnn": "is a library of ROCm's, which builds for CUDA lack"}),
}


def operators(target: Target) -> Iterator[object]:
    """Yield operators with a rule."""
    for name, rule in sorted(expected(target.device.type, torch.__version__).items()):
        short = name.removeprefix("aten::")
        if rule.name is not RuleName.BANNED and has_samples(name) and short not in LEFT_OUT:
            yield pytest.param(name, id=short)


def test_no_operator_is_forgotten(amp: SuiteAmp) -> None:
    """Every operator with a rule has a sample, so that it is checked here, or a reason for being left out."""
    rules = expected(amp.device.type, torch.__version__)
    missing = [
        name
        for name, rule in rules.items()
        # Overloads by the name of a dimension, which torch had until 2.12, call other overloads, or cannot be called.
        if rule.name is not RuleName.BANNED and not has_samples(name) and name not in {*NAMED, *UNREACHABLE}
    ]
    assert not missing, f"without a sample in pytest_amp/rules: {', '.join(sorted(missing))}"
    ruled = {*expected("cpu", torch.__version__), *expected("cuda", torch.__version__)}
    assert {f"aten::{name}" for name in LEFT_OUT} <= ruled, "left out, but without a rule"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.amp_parametrize("name", operators)
def test_operator_with_a_rule(amp: SuiteAmp, name: str) -> None:
    short = name.removeprefix("aten::")
    check_operator(f"registered/{short}", measure_registered(name, amp.conditions), amp.conditions, amp.observe)
