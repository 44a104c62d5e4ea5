"""Losses of many low-precision logits, with each reduction: float32 in values as in name, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import check_operator, measure_operator
from pytest_amp.run.targets import Target

from .long_losses import LOSSES

#: Known errors of CUDA by name, and their workarounds.
ROUNDED_ON_CUDA = (
    "cross_entropy asks log_softmax for the low dtype, which fp32_set_opt_dtype respects (no report found): "
    "F.nll_loss(F.log_softmax(x, -1), t), or cross_entropy of .float() logits, is float32"
)
ON_CUDA = dict.fromkeys(("cross_entropy", "cross_entropy_ignoring", "cross_entropy_of_images"), ROUNDED_ON_CUDA)


def losses(target: Target) -> Iterator[object]:
    """Yield LOSSES, expected to fail where their device has a known error."""
    for name in LOSSES:
        reason = ON_CUDA.get(name) if target.device.type == "cuda" else None
        marks = [pytest.mark.xfail(reason=reason, raises=AmpFailure, strict=True)] if reason else []
        yield pytest.param(name, id=name, marks=marks)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")  # kl_div's advice to its users
@pytest.mark.amp_parametrize("name", losses)
def test_losses_and_their_gradients(amp: SuiteAmp, name: str) -> None:
    """Losses with each reduction are float32 where the device has the rule, in values as in name."""
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
    """Single losses are low-precision values by chance once in some thousand cases; two of them, in millions."""
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
