"""Training cases: recurrent layers, losses, and accumulation over micro-batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pytest_amp.cases.case import Case
from pytest_amp.cases.zoo import Batch, classification

WIDTH, CLASSES = 32, 12


class Gated(nn.Module):
    """GRU with a linear layer on its last output (Cho et al. 2014)."""

    def __init__(self) -> None:
        """Create one GRU layer and the head."""
        super().__init__()
        self.gru, self.head = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Classify. Shapes: (batch, steps, width) to (batch, classes)."""
        states, _ = self.gru(x)
        logits: Tensor = self.head(states[:, -1])
        return logits


def gru() -> Case:
    """Return a case that guards a recurrent layer that runs cell by cell, with casts in every cell."""

    def batch() -> Batch:
        return {"inputs": torch.randn(6, 8, WIDTH, requires_grad=True), "targets": torch.randint(CLASSES, (6,))}

    return Case("gru", Gated, batch, classification)


Loss = Callable[[Tensor, Batch], Tensor]


def _of_loss(name: str, loss: Loss) -> Case:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))

    def batch() -> Batch:
        return {
            "inputs": torch.randn(24, WIDTH, requires_grad=True),
            "targets": torch.arange(24) % CLASSES,
            "values": torch.randn(24, CLASSES),
        }

    def both(model: nn.Module, batch: Batch) -> Batch:
        logits = model(batch["inputs"])
        return {"loss": loss(logits, batch), "logits": logits}

    return Case(f"loss_{name}", build, batch, both)


def _cosine(x: Tensor, batch: Batch) -> Tensor:
    """Return a cosine embedding loss whose margin is far from every pair.

    Near the margin, rounding would decide on which side of it a pair lies, and with it the pair's whole gradient.
    """
    return f.cosine_embedding_loss(x, batch["values"], batch["values"][:, 0].sign(), margin=-0.9)


def losses() -> tuple[Case, ...]:
    """Return one case for each loss that is float32 by rule or promotion, on top of an MLP.

    The cases guard the gradients of the losses.
    """
    return (
        _of_loss("smoothed", lambda x, b: f.cross_entropy(x, b["targets"], label_smoothing=0.1)),
        _of_loss("binary", lambda x, b: f.binary_cross_entropy_with_logits(x, b["values"].sigmoid())),
        _of_loss("mse", lambda x, b: f.mse_loss(x, b["values"])),
        _of_loss("kl", lambda x, b: f.kl_div(x.log_softmax(-1), b["values"].softmax(-1), reduction="batchmean")),
        _of_loss("cosine", _cosine),
    )


def ctc() -> Case:
    """Return a case that guards CTC, whose forward and backward variables are sums over paths (Graves et al. 2006)."""

    def loss(model: nn.Module, batch: Batch) -> Batch:
        logs = model(batch["inputs"]).log_softmax(-1)
        steps, labels = logs.shape[0], batch["targets"].shape[1]
        before, after = (torch.full((4,), length, device=logs.device) for length in (steps, labels))
        return {"loss": f.ctc_loss(logs, batch["targets"], before, after), "logs": logs}

    def batch() -> Batch:
        return {
            "inputs": torch.randn(10, 4, WIDTH, requires_grad=True),
            "targets": torch.randint(1, CLASSES, (4, 3)),
        }

    return Case("loss_ctc", lambda: nn.Linear(WIDTH, CLASSES), batch, loss)


def accumulated() -> Case:
    """Return a case that guards accumulation of four micro-batches into float32 gradients; each has its own casts."""

    def loss(model: nn.Module, batch: Batch) -> Batch:
        parts = zip(batch["inputs"].chunk(4), batch["targets"].chunk(4), strict=True)
        losses = [f.cross_entropy(model(x), y) / 4 for x, y in parts]
        return {"loss": torch.stack(losses).sum()}

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, CLASSES))

    def batch() -> Batch:
        return {"inputs": torch.randn(32, WIDTH, requires_grad=True), "targets": torch.arange(32) % CLASSES}

    return Case("accumulated", build, batch, loss)
