"""Checkpoint and resume: the trajectory after a resume is bitwise equal to the uninterrupted one."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure

from .training import INF, ScalerFactory

_STEPS = 14
#: Iterations whose gradients overflow: before and after each checkpoint, the first iteration among them.
_BAD = frozenset({0, 4, 7, 8})


@dataclass
class Trained:
    """Model, optimizer, scheduler and scaler, and the results of each iteration."""

    amp: SuiteAmp
    scaler: torch.amp.GradScaler
    optimizer_id: str
    trace: list[tuple[float, float, int, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Build a small model, seeded."""
        torch.manual_seed(self.amp.config.seed)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 4))
        self.model = model.to(self.amp.device.torch_device)
        name, _, fused = self.optimizer_id.partition(" ")
        self.optimizer = getattr(torch.optim, name)(self.model.parameters(), lr=2.0**-6, fused=bool(fused))
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, gamma=0.5)

    def iterate(self, step: int) -> None:
        """Run one iteration; its number determines the batch."""
        generator = torch.Generator().manual_seed(step)
        batch = torch.randn(16, 8, generator=generator).to(self.amp.device.torch_device)
        self.optimizer.zero_grad()
        with self.amp.autocast():
            loss = self.model(batch).float().square().mean()
        self.scaler.scale(loss).backward()
        if step in _BAD:
            gradient = next(self.model.parameters()).grad
            assert gradient is not None
            gradient.view(-1)[3] = INF
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.25)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.get_scale() >= scale:
            self.scheduler.step()
        state = self.scaler.state_dict()
        rate = self.optimizer.param_groups[0]["lr"]
        self.trace.append((loss.item(), state["scale"], state["_growth_tracker"], rate))

    @property
    def parts(self) -> dict[str, Any]:
        """Return every part with a state dict."""
        names = ("model", "optimizer", "scheduler", "scaler")
        return {name: getattr(self, name) for name in names}

    def saved(self) -> io.BytesIO:
        """Return a checkpoint as users write them."""
        file = io.BytesIO()
        torch.save({name: part.state_dict() for name, part in self.parts.items()}, file)
        file.seek(0)
        return file

    def load(self, file: io.BytesIO) -> None:
        """Load with ``weights_only``, the default since torch 2.6."""
        checkpoint = torch.load(file, weights_only=True)
        for name, part in self.parts.items():
            part.load_state_dict(checkpoint[name])


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "AdamW fused"])
@pytest.mark.parametrize("at", [0, 1, 5, 8, 9])
def test_a_resumed_training_is_the_one_without(
    amp: SuiteAmp, amp_scaler: ScalerFactory, optimizer: str, at: int
) -> None:
    """Resume from a file in new objects with other settings: losses, scales, rates and parameters are bitwise equal.

    Resume also right after a skipped step, before any step, and in the middle of a growth interval.
    """

    def scaler(**other: float) -> torch.amp.GradScaler:
        return amp_scaler(**{"init_scale": 2.0**10, "growth_interval": 3, **other})

    whole = Trained(amp, scaler(), optimizer)
    first = Trained(amp, scaler(), optimizer)
    second = Trained(amp, scaler(init_scale=2.0, growth_interval=5, growth_factor=8.0), optimizer)
    for step in range(_STEPS):
        whole.iterate(step)
        if step == at:
            second.load(first.saved())
        (first if step < at else second).iterate(step)
    ends = [trained.model.state_dict() for trained in (whole, second)]
    different = [name for name in ends[0] if not torch.equal(ends[0][name], ends[1][name])]
    resumed = first.trace[:at] + second.trace
    if resumed != whole.trace or different:
        at_first = next((i for i, (a, b) in enumerate(zip(whole.trace, resumed, strict=True)) if a != b), _STEPS)
        raise AmpFailure(
            f"a training with {optimizer} that is resumed at iteration {at} on {amp.target.id} differs",
            label_before="rule",
            before="losses, scales, growth trackers, rates and parameters are those of the run without a resume",
            now=f"from iteration {at_first} on they differ; parameters and buffers that differ: {different}",
            likely="a state dict loses something: scale, tracker, factors, a step counter",
        )
    assert len({scale for _, scale, _, _ in whole.trace}) > 3, "the scale hardly moved"
