"""Modules of torch.nn that no other test covers, after a low-precision product: outputs and gradients as predicted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.numerics import relative_error
from pytest_amp.run.targets import Target

from .layers import case_of
from .modules import MODULES

#: Autocast refuses the first on CUDA (see suites/rules); the others have not run there since their ``norm`` is
#: called with explicit defaults.
NOT_ON_CUDA = ("BCELoss", "PairwiseDistance", "TripletMarginWithDistanceLoss")


def modules(target: Target) -> Iterator[str]:
    return (name for name in MODULES if target.device.type != "cuda" or name not in NOT_ON_CUDA)


@pytest.mark.amp_parametrize("name", modules)
def test_module(amp: SuiteAmp, name: str) -> None:
    amp.check_gradients(case_of(name, MODULES[name]))


#: Of u: log-probabilities of a head and of a cluster are added, each of which is rounded, as the input and weights are.
MOST = 4.0


@pytest.mark.amp_parametrize("inputs", lambda _: ("float32", "low"))
def test_an_adaptive_softmax_learns_of_rare_classes(amp: SuiteAmp, inputs: str) -> None:
    """Outputs and gradients in training are near float64's."""
    device = amp.device.torch_device
    model = nn.AdaptiveLogSoftmaxWithLoss(16, 20, [5, 10], div_value=2.0).to(device)
    x, classes = torch.randn(40, 16, device=device).to(amp.dtype), torch.arange(40, device=device) % 20
    with amp.autocast():
        actual = model(x if inputs == "low" else x.float(), classes)
    actual.loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    exact = model.double()
    exact.zero_grad()
    expected = exact(x.double(), classes)
    expected.loss.backward()
    assert relative_error(actual.output, expected.output) <= MOST * amp.precision.u
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        assert gradient is not None
        assert parameter.grad is not None
        assert relative_error(gradient, parameter.grad) <= MOST * amp.precision.u


def test_an_adaptive_softmax_evaluates(amp: SuiteAmp) -> None:
    """All log-probabilities at once are in the dtype of the input, and are near float64's."""
    device = amp.device.torch_device
    model = nn.AdaptiveLogSoftmaxWithLoss(16, 20, [5, 10], div_value=2.0).to(device).eval()
    x = torch.randn(40, 16, device=device)
    with torch.no_grad(), amp.autocast():
        actual = model.log_prob(x)
    assert actual.dtype is torch.float32
    assert relative_error(actual, model.double().log_prob(x.double())) <= MOST * amp.precision.u
