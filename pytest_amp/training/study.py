"""Long-run study of AdamW with weights and states in bfloat16 against float32 masters, over thousands of steps.

docs/lab/training.md has a table of these storages and of others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pytest_amp.cases import loss_of, map_tensors
from pytest_amp.training.low_adamw import LowAdamW, Rounding, Storage
from pytest_amp.training.tasks import characters

BF16 = torch.bfloat16
#: Peak of the learning rate: a tenth of that of the short task, as in long trainings.
_RATE, _WARM_UP = 1e-3, 100

STORAGES = (
    Storage("float32 masters and states"),
    Storage("bf16 weights and states", weights=BF16, first=BF16, second=BF16),
    Storage("bf16 weights, float32 states, stochastic rounding", weights=BF16, rounding=Rounding.STOCHASTIC),
    Storage("bf16 weights, float32 states, Kahan sum", weights=BF16, rounding=Rounding.KAHAN),
)


@dataclass(frozen=True)
class Trained:
    """Losses of a training, and the share of updates that rounded away."""

    losses: list[float]
    lost: float

    @property
    def final(self) -> float:
        """Return the mean loss of the last twentieth."""
        last = self.losses[-max(1, len(self.losses) // 20) :]
        return sum(last) / len(last)


def rate_at(step: int, steps: int) -> float:
    """Return the learning rate: a linear warm-up, then half a cosine down to zero."""
    if step < _WARM_UP:
        return _RATE * (step + 1) / _WARM_UP
    return _RATE * 0.5 * (1 + math.cos(math.pi * (step - _WARM_UP) / max(1, steps - _WARM_UP)))


def train(storage: Storage, *, steps: int, seed: int = 0, device: torch.device | None = None) -> Trained:
    """Train the character decoder under autocast(bfloat16), with a fixed initialisation and order of batches."""
    case, where = characters().case, device or torch.device("cpu")
    model = case.realise(seed=seed).model.to(where, storage.weights)
    optimizer = LowAdamW(model.parameters(), storage, seed=seed)
    losses: list[float] = []
    counts: list[tuple[int, int]] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 1)
        for step in range(steps):
            model.zero_grad()
            batch = map_tensors(lambda x: x.to(where), case.batch())
            with torch.autocast(where.type, BF16):
                loss = loss_of(case.loss(model, batch))
            torch.autograd.backward(loss)
            counts.append(optimizer.step(rate_at(step, steps)))
            losses.append(loss.item())
    moved, stayed = (sum(column) for column in zip(*counts, strict=True))
    return Trained(losses, stayed / max(1, moved))
