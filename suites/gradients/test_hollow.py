"""Tensors of dtype float32 have float32 values: no intermediate result was rounded to the low dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import mlp
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import is_hollow, run_step

ROWS, CLASSES = 200, 40


def classes(logits: Tensor) -> Tensor:
    return torch.arange(ROWS, device=logits.device) % CLASSES


#: Losses that are not reduced, of low-precision logits and float32 targets.
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": lambda x, _: f.cross_entropy(x, classes(x), reduction="none"),
    "cross_entropy_smoothed": lambda x, _: f.cross_entropy(x, classes(x), reduction="none", label_smoothing=0.1),
    "cross_entropy_of_shares": lambda x, y: f.cross_entropy(x, y.softmax(-1), reduction="none"),
    "mse": lambda x, y: f.mse_loss(x, y, reduction="none"),
    "l1": lambda x, y: f.l1_loss(x, y, reduction="none"),
    "smooth_l1": lambda x, y: f.smooth_l1_loss(x, y, reduction="none"),
    "huber": lambda x, y: f.huber_loss(x, y, reduction="none"),
    "binary_cross_entropy_with_logits": lambda x, y: f.binary_cross_entropy_with_logits(
        x, y.sigmoid(), reduction="none"
    ),
    "kl_div": lambda x, y: f.kl_div(x, y.softmax(-1), reduction="none"),
    "poisson_nll": lambda x, y: f.poisson_nll_loss(x, y.square(), reduction="none"),
    "soft_margin": lambda x, y: f.soft_margin_loss(x, y.sign(), reduction="none"),
}


@pytest.mark.amp_parametrize("name", lambda _: LOSSES)
def test_losses_are_not_rounded(amp: SuiteAmp, name: str) -> None:
    hidden = torch.randn(ROWS, 16, device=amp.device.torch_device)
    head = torch.randn(CLASSES, 16, device=amp.device.torch_device)
    targets = torch.randn(ROWS, CLASSES, device=amp.device.torch_device)
    with amp.autocast():
        loss = LOSSES[name](f.linear(hidden, head), targets)
    hold(amp, name, loss)


#: Functions of float32 leaves that compute in float32: on a CPU without a rule, on an accelerator by their rule.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "layer_norm": lambda x: f.layer_norm(x, x.shape[-1:]),
    "softmax": lambda x: f.softmax(x, -1),
    "log_softmax": lambda x: f.log_softmax(x, -1),
    "gelu": f.gelu,
    "group_norm": lambda x: f.group_norm(x, 4),
    "cumsum": lambda x: x.cumsum(-1),
    "exp": torch.exp,
    "prod": lambda x: torch.prod(1 + x / 8, -1),
    "cumprod": lambda x: torch.cumprod(1 + x / 8, -1),
    "norm": lambda x: x.norm(dim=-1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_float32_are_not_rounded(amp: SuiteAmp, name: str) -> None:
    """Neither the results nor the gradients of the arguments are rounded."""
    leaf = torch.randn(ROWS, CLASSES, device=amp.device.torch_device, requires_grad=True)
    with amp.autocast():
        result = FUNCTIONS[name](leaf)
    torch.autograd.backward(result, torch.randn_like(result))
    hold(amp, name, result)
    assert leaf.grad is not None
    hold(amp, f"the gradient of {name}'s argument", leaf.grad)


def test_float32_training_is_not_rounded(amp: SuiteAmp) -> None:
    """Without autocast no gradient is rounded: this detects errors that round gradients with and without autocast."""
    case = mlp()
    step = run_step(
        case,
        case.realise(seed=amp.config.seed).on(amp.device.torch_device),
        lambda: amp.autocast(enabled=False),
        seed=amp.config.seed,
    )
    for name, value in step.named().items():
        if value.numel() >= 64:
            hold(amp, name, value)


def hold(amp: SuiteAmp, name: str, value: Tensor) -> None:
    """Check for float32 in dtype and in values; with fewer than 64 distinct values the test could not fail."""
    hollow = is_hollow(value, amp.dtype)
    assert hollow is not None, f"{name} has too few values to tell"
    if value.dtype != torch.float32 or hollow:
        raise AmpFailure(
            f"{name} under autocast({amp.device.key}, {amp.precision.dtype_name}) is not float32 in full",
            label_before="rule",
            before="float32",
            now=f"{value.dtype}, {'every' if hollow else 'not every'} value one that {amp.precision.dtype_name} has, "
            f"on torch {torch.__version__}, {amp.device.describe()}",
            likely="the operator rounds an intermediate result, and casts its result back",
        )
