"""Losses of many low-precision logits, with each reduction: float32 in dtype and in values, forward and backward."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.numerics import check_operator, measure_operator

from .long_losses import LOSSES


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")  # kl_div's advice to its users
@pytest.mark.amp_parametrize("name", lambda _: LOSSES)
def test_losses_and_their_gradients(amp: SuiteAmp, name: str) -> None:
    """Losses with each reduction are float32 in dtype and in values if the device has the rule."""
    logits, targets = torch.randn(1024, 24).to(amp.dtype), torch.randn(1024, 24)
    measured = {
        reduction: measure_operator(
            name, lambda x, y, r=reduction: LOSSES[name](x, y, r), (logits, targets), amp.conditions
        )
        for reduction in ("mean", "sum", "none")
    }
    check_operator(f"loss.{name}", measured, amp.conditions, amp.observe)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize("name", LOSSES)
def test_reduced_losses_are_not_rounded(amp: SuiteAmp, name: str) -> None:
    """A single loss is representable in low precision by chance once in some thousand cases; two are, in millions."""
    device = amp.device.torch_device
    logits, targets = torch.randn(1024, 24).to(device, amp.dtype), torch.randn(1024, 24).to(device)
    reduced = []
    for reduction in ("mean", "sum"):
        with amp.autocast():
            reduced.append(LOSSES[name](logits, targets, reduction))
    assert all(value.dtype == torch.float32 for value in reduced), f"{name} is {reduced[0].dtype}"
    for dtype in (torch.bfloat16, torch.float16):
        narrow = [bool(value == value.to(dtype).to(value.dtype)) for value in reduced]
        assert not all(narrow), f"{name}: mean and sum are both values that {dtype} has"
