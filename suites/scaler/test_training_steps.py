"""Training steps of each kind of network: overflow is skipped, the scale recovers, the optimizer sees no scale.

Users call the same check: ``amp.check_scaler``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.cases import Case, cnn, decoder, mlp
from pytest_amp.failure import AmpFailure
from pytest_amp.scaler import Iteration

CASES = {
    "mlp": lambda: mlp(width=16, batch=4),
    "cnn": cnn,
    "decoder": decoder,
}


def clipped(iteration: Iteration) -> None:
    """Run unscale_ and clip, as in torch's examples."""
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss = iteration.loss()
    iteration.scaler.scale(loss).backward()
    iteration.scaler.unscale_(iteration.optimizer)
    nn.utils.clip_grad_norm_(iteration.model.parameters(), 0.125)
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


def accumulated(iteration: Iteration) -> None:
    """Accumulate two micro-batches, and take their mean."""
    iteration.optimizer.zero_grad()
    for _ in range(2):
        with iteration.autocast():
            loss = iteration.loss() / 2
        iteration.scaler.scale(loss).backward()
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


def with_two_losses(iteration: Iteration) -> None:
    """Run a separate backward pass of an auxiliary loss, which is scaled, too."""
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss = iteration.loss()
    iteration.scaler.scale(loss).backward()
    auxiliary = torch.stack([parameter.square().mean() for parameter in iteration.model.parameters()]).sum()
    iteration.scaler.scale(auxiliary).backward()
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


def test_two_losses_of_a_step_are_both_scaled(amp: SuiteAmp) -> None:
    amp.check_scaler(
        replace(mlp(width=16, batch=4), name="two_losses"), train=with_two_losses, overflow_activations_at=()
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("train", "fused"), [(clipped, False), (accumulated, True)], ids=["clipped, loop", "accumulated, fused"]
)
def test_a_training_step(amp: SuiteAmp, case: str, train: Callable[[Iteration], None], *, fused: bool) -> None:
    name = f"{case}-{train.__name__}-{'fused' if fused else 'loop'}"
    amp.check_scaler(
        replace(CASES[case](), name=name),
        train=train,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=2.0**-10, fused=fused),
        overflow_activations_at=(),
    )


def _normed(name: str) -> Case:
    return Case(
        name,
        lambda: nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)),
        lambda: torch.randn(6, 8),
        lambda model, batch: model(batch).float().square().mean(),
    )


@pytest.mark.parametrize("nonfinite_buffers", [(), ("*.running_*",)], ids=["noted", "named"])
def test_a_network_with_statistics_that_an_overflow_spoils(amp: SuiteAmp, nonfinite_buffers: tuple[str, ...]) -> None:
    """Skipping the step does not undo the writes of forward (pytorch/pytorch#115500). All other checks hold."""
    amp.check_scaler(_normed("named" if nonfinite_buffers else "noted"), nonfinite_buffers=nonfinite_buffers)


def test_statistics_survive_an_overflow(amp: SuiteAmp) -> None:
    torch.manual_seed(amp.config.seed)
    network = _normed("normed").build().to(amp.device.torch_device)
    with amp.autocast():
        network(torch.full((6, 8), float("inf"), device=amp.device.torch_device))
    nonfinite = [name for name, buffer in network.named_buffers() if not buffer.isfinite().all()]
    if nonfinite:
        raise AmpFailure(
            "running statistics keep an overflow of the forward pass",
            label_before="rule",
            before="a skipped step leaves no buffer with an inf or NaN in it",
            now=f"not finite: {', '.join(nonfinite)}",
            likely="they are updated by the forward pass, and skipping the step does not undo it",
        )
