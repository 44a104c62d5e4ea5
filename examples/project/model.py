"""Subject of the project: a model, a batch and a loss."""

import torch
from torch import Tensor, nn
from torch.nn import functional


def build() -> nn.Module:
    """Return a small classifier."""
    return nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10))


def batch() -> dict[str, Tensor]:
    """Return a batch on the CPU, after torch has been seeded."""
    return {"features": torch.randn(32, 16), "classes": torch.randint(10, (32,))}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return the cross entropy."""
    return functional.cross_entropy(model(batch["features"]), batch["classes"])
