"""Every parameter of every layer gets a gradient: of its own dtype, not zero, and as exact as with manual casts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.numerics import run_step

from .layers import LAYERS, case_of


@pytest.mark.amp_parametrize("name", lambda _: LAYERS)
def test_layer(amp: SuiteAmp, name: str) -> None:
    amp.check_gradients(case_of(name, LAYERS[name]))


def test_frozen_parameters_stay_without(amp: SuiteAmp) -> None:
    case = case_of("first_frozen", LAYERS["first_frozen"])
    realised = case.realise(seed=amp.config.seed).on(amp.device.torch_device)
    run_step(case, realised, amp.autocast, seed=amp.config.seed)
    gradients = {name: value.grad for name, value in realised.model.named_parameters()}
    assert gradients["frozen.weight"] is None
    assert gradients["frozen.bias"] is None
    assert gradients["trained.weight"] is not None


def test_freezing_a_layer_leaves_the_others_alone(amp: SuiteAmp) -> None:
    """Gradients are bitwise equal, although autocast caches the cast of a trained weight and not of a frozen one."""
    case = case_of("first_frozen", LAYERS["first_frozen"])
    steps = []
    for trained in (False, True):
        realised = case.realise(seed=amp.config.seed).on(amp.device.torch_device)
        realised.model.get_submodule("frozen").requires_grad_(trained)
        steps.append(run_step(case, realised, amp.autocast, seed=amp.config.seed).named())
    frozen, free = steps
    for name, value in frozen.items():
        assert torch.equal(value, free[name]), f"{name} differs when another layer is trained"


EMPTY: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(6, 4), (0, 6)),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3), (0, 3, 5, 5)),
    "LayerNorm": (lambda: nn.LayerNorm(6), (0, 6)),
    "two layers": (lambda: nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 2)), (0, 6)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_batch_gives_gradients_of_zeros(amp: SuiteAmp, name: str) -> None:
    """An expert without tokens has zero gradients: an optimizer and the other ranks rely on them."""
    build, shape = EMPTY[name]
    layer = build().to(amp.device.torch_device)
    with amp.autocast():
        result = layer(torch.zeros(shape, device=amp.device.torch_device))
    result.float().sum().backward()
    for key, parameter in layer.named_parameters():
        assert parameter.grad is not None, f"{key} has no gradient"
        assert parameter.grad.dtype is torch.float32
        assert torch.equal(parameter.grad, torch.zeros_like(parameter)), f"the gradient of {key} is not zero"
