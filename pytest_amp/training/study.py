"""Long-run study of AdamW with weights and states in bfloat16 against float32 masters, over thousands of steps.

The suites train four of the storages for a thousand steps; docs/lab/training.md has a table of all.
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
    Storage("float32 masters, first moment bf16", first=BF16),
    Storage("float32 masters, second moment bf16", second=BF16),
    Storage("float32 masters, both moments bf16", first=BF16, second=BF16),
    Storage("bf16 weights, float32 states", weights=BF16),
    Storage("bf16 weights and states", weights=BF16, first=BF16, second=BF16),
    Storage("bf16 weights and states, stochastic rounding", BF16, BF16, BF16, Rounding.STOCHASTIC),
    Storage("bf16 weights and states, Kahan sum", BF16, BF16, BF16, Rounding.KAHAN),
    Storage("bf16 weights, float32 states, stochastic rounding", weights=BF16, rounding=Rounding.STOCHASTIC),
    Storage("bf16 weights, float32 states, Kahan sum", weights=BF16, rounding=Rounding.KAHAN),
)


@dataclass(frozen=True)
class Trained:
    """Losses of a training, and the share of updates that rounded away, overall and in its last tenth."""

    storage: Storage
    losses: list[float]
    lost: float
    lost_late: float

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
    return Trained(storage, losses, _share(counts), _share(counts[-max(1, steps // 10) :]))


def _share(counts: list[tuple[int, int]]) -> float:
    return sum(stayed for _, stayed in counts) / max(1, sum(expected for expected, _ in counts))
