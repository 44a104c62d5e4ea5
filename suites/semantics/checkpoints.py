"""Computation of checkpointed blocks, and comparison with the same blocks without a checkpoint."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure

Block = Callable[[torch.Tensor], torch.Tensor]
REENTRANT = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "non-reentrant"])


def gradients(amp: SuiteAmp, model: nn.Module, block: Block, *, inside: bool = False) -> list[torch.Tensor]:
    """Return the result, and the gradients of input and parameters; backward is called inside or outside the region."""
    torch.manual_seed(amp.config.seed)
    batch = torch.randn(4, 8).to(amp.device.torch_device).requires_grad_()
    model.zero_grad()
    with amp.autocast():
        result = block(batch)
        loss = result.float().square().sum()
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    actual = [batch.grad, *(parameter.grad for parameter in model.parameters())]
    return [result.detach(), *(gradient.clone() for gradient in actual if gradient is not None)]


def expect_same(
    amp: SuiteAmp, plain: list[torch.Tensor], actual: list[torch.Tensor], *, what: str = "checkpointing"
) -> None:
    """Raise AmpFailure unless ``actual`` has the bits of ``plain``; ``what`` is the cause in the message."""
    different = len(plain) != len(actual) or [
        i for i, (a, b) in enumerate(zip(plain, actual, strict=True)) if a.dtype is not b.dtype or not torch.equal(a, b)
    ]
    if different:
        raise AmpFailure(
            f"{what} changes the results of a region on {amp.target.id}",
            label_before="rule",
            before="result and gradients equal those without a checkpoint, bit for bit",
            now=f"different bits in {different} of {len(plain)} tensors",
            likely="the recomputation runs without the region, in a different dtype, or with a different dropout mask",
        )
