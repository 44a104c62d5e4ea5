"""CUDA graph capture: an impossible capture is reported with a remedy; a possible one leaves the process unchanged."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.speed import NO_FLOOR

pytestmark = pytest.mark.amp(devices=["cuda"])


def test_a_step_that_reads_a_value_cannot_be_captured(amp: SuiteAmp) -> None:
    """The device continues to work: nothing is left of the attempt."""

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(batch).float().square().mean()
        return out if out.item() > 0 else out * 2

    case = amp.case(lambda: nn.Linear(64, 64), lambda: torch.randn(64, 64), loss)
    with pytest.raises(AmpFailure, match=r'cannot be captured .*(?s:.*)kind="step"'):
        amp.check_speedup(case, versus="fp32", floor=NO_FLOOR, seconds=1.0)
    assert torch.ones(4, device=amp.device.torch_device).sum().item() == 4
    assert not torch.cuda.is_current_stream_capturing()


def test_a_captured_step_computes_what_an_eager_one_does(amp: SuiteAmp) -> None:
    """Gradients of a replay are those of a call, in fp16 with the scaler's scale on them."""
    from pytest_amp.speed import arms_of, step_maker
    from pytest_amp.speed.replay import captured

    device = amp.device.torch_device
    grads: dict[str, torch.Tensor] = {}
    weights: list[nn.Parameter] = []

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        weights[:] = list(model.parameters())
        return model(batch).float().square().mean()  # type: ignore[no-any-return]

    case = amp.case(build, lambda: torch.randn(32, 64), loss)
    arms = arms_of(step_maker(case, amp.device, seed=0, dtype=amp.dtype)(), amp.device, amp.dtype)
    arms.candidate()
    torch.cuda.synchronize(device)
    grads["eager"] = torch.cat([w.grad.flatten() for w in weights if w.grad is not None]).clone()
    replay = captured(arms.candidate, amp.device, "it")
    replay()
    torch.cuda.synchronize(device)
    grads["replayed"] = torch.cat([w.grad.flatten() for w in weights if w.grad is not None]).clone()
    assert bool(grads["eager"].any())
    assert torch.equal(grads["eager"], grads["replayed"])
