"""Updates of the weights: each optimizer, in each implementation, steps in float32 as in float64, up to rounding."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.run.targets import Target
from pytest_amp.scaler.optimizers import make_optimizer, optimizers_on, variant_of

_STEPS = 4
#: Few elements, more than a block of a kernel, more than a chunk of foreach's (65536) or a thread's share.
SIZES = {"small": (3, 5), "a block": (40, 40), "large": (300, 250)}
#: The learning rate of ``make_optimizer`` is 0.125; weights are as large as this so that an update is 2**-12 of one.
_SIZE = 512.0


def _optimizers(target: Target) -> Iterator[object]:
    """Yield optimizers of dense gradients, without Muon, whose updates are bfloat16 (torch/optim/_muon.py)."""
    for optimizer in optimizers_on(target.device.torch_device):
        if optimizer != "Muon" and not variant_of(optimizer).sparse:
            yield pytest.param(optimizer, id=optimizer)


def _moved(optimizer: str, gradients: list[torch.Tensor], start: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the change of the weights after the steps, in float64."""
    weight = nn.Parameter(start.to(dtype, copy=True))
    instance = make_optimizer(optimizer, [weight])
    for group in instance.param_groups:  # decay is of the weight's size, and would hide the effect of gradients
        group["weight_decay"] = 0.0
    for gradient in gradients:
        weight.grad = gradient.to(dtype)
        instance.step()
    return weight.detach().double() - start.double()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.amp_parametrize("optimizer", _optimizers)
def test_small_updates_arrive(amp: SuiteAmp, optimizer: str, size: str) -> None:
    """Update weights that are thousands of times larger, with gradients of a low-precision backward pass.

    Each step rounds the weight to float32, ASGD twice, and the update a dozen times: each element is within as many
    roundings of float64's weight, and 64 of the update. Roundings of the low dtypes are 2**13 and 2**16 times as
    coarse.
    """
    optimizer_of_loop = optimizer.partition(", ")[0] + (", loop" if ", " in optimizer else "")
    device = amp.device.torch_device
    start = (1 + torch.rand(SIZES[size])) * _SIZE
    # An element's gradients have one sign: those of both signs may add up to zero, and the weight stays where it is.
    sign = torch.randn(SIZES[size]).sign()
    gradients = [(sign * (0.5 + torch.rand(SIZES[size]))).to(amp.dtype).float() for _ in range(_STEPS)]
    exact = _moved(optimizer_of_loop, [g.double() for g in gradients], start, torch.float64)
    actual = _moved(optimizer, [g.to(device) for g in gradients], start.to(device), torch.float32).cpu()
    # An implementation that omits small updates may do so in float64, too.
    stays = int((exact == 0).sum())
    assert not stays, f"{stays} of {exact.numel()} weights do not move under {optimizer}"
    scale = exact.abs().max()
    unit = 2.0**-24
    allowed = _STEPS * 2 * unit * start.double() + 64 * unit * scale
    amp.observe(f"{optimizer}/{size}/moved", float(scale / _SIZE), kind="ratio")
    off = (actual - exact).abs() / allowed
    if float(off.max()) > amp.config.tolerance_scale:
        lost = float(((actual == 0) & (exact != 0)).double().mean())
        raise AmpFailure(
            f"{optimizer} on {amp.target.id} moves weights of shape {SIZES[size]} elsewhere than in float64",
            label_before="float64",
            before=f"weights of {_SIZE:g} and more move by up to {float(scale):.3g}",
            now=f"{float(off.max()):.3g} times what rounding allows; {lost:.1%} of the weights do not move",
            likely="weights, updates or states are rounded to a low dtype, or small updates are skipped",
        )
