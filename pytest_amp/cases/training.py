"""Built-in cases: a recurrent layer, loss functions, and gradient accumulation over micro-batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_amp.cases.case import Case
from pytest_amp.cases.zoo import Batch, classification

WIDTH, CLASSES = 32, 12


class Gated(nn.Module):
    """GRU with a linear layer on its last output (Cho et al. 2014)."""

    def __init__(self) -> None:
        """Create a GRU layer and a linear classifier."""
        super().__init__()
        self.gru, self.head = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Classify. Shapes: (batch, steps, width) to (batch, classes)."""
        states, _ = self.gru(x)
        logits: Tensor = self.head(states[:, -1])
        return logits


def gru() -> Case:
    """Return a case of a GRU, a recurrent layer: its cells run one after the other, with casts in every cell."""

    def batch() -> Batch:
        return {"inputs": torch.randn(6, 8, WIDTH, requires_grad=True), "targets": torch.randint(CLASSES, (6,))}

    return Case("gru", Gated, batch, classification)


Loss = Callable[[Tensor, Batch], Tensor]


def _loss_case(name: str, loss: Loss) -> Case:
    """Return a case of an MLP with ``loss``."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))

    def batch() -> Batch:
        return {
            "inputs": torch.randn(24, WIDTH, requires_grad=True),
            "targets": torch.arange(24) % CLASSES,
            "values": torch.randn(24, CLASSES),
        }

    def loss_and_logits(model: nn.Module, batch: Batch) -> Batch:
        logits = model(batch["inputs"])
        return {"loss": loss(logits, batch), "logits": logits}

    return Case(f"loss_{name}", build, batch, loss_and_logits)


def _cosine_embedding(x: Tensor, batch: Batch) -> Tensor:
    """Return the cosine embedding loss, with a margin far from the cosine similarity of every pair.

    The gradient is discontinuous at the margin: if the similarity of a pair were near it, rounding would decide whether
    the pair has a gradient.
    """
    return functional.cosine_embedding_loss(x, batch["values"], batch["values"][:, 0].sign(), margin=-0.9)


def losses() -> tuple[Case, ...]:
    """Return a case for each loss that autocast computes in float32, by a rule or by type promotion.

    The cases detect errors in the gradients of these losses.
    """
    return (
        _loss_case("smoothed", lambda x, b: functional.cross_entropy(x, b["targets"], label_smoothing=0.1)),
        _loss_case("binary", lambda x, b: functional.binary_cross_entropy_with_logits(x, b["values"].sigmoid())),
        _loss_case("mse", lambda x, b: functional.mse_loss(x, b["values"])),
        _loss_case(
            "kl", lambda x, b: functional.kl_div(x.log_softmax(-1), b["values"].softmax(-1), reduction="batchmean")
        ),
        _loss_case("cosine", _cosine_embedding),
    )


def ctc() -> Case:
    """Return a case of the CTC loss, whose forward and backward variables are sums over paths (Graves et al. 2006)."""

    def loss(model: nn.Module, batch: Batch) -> Batch:
        log_probs = model(batch["inputs"]).log_softmax(-1)
        lengths = (log_probs.shape[0], batch["targets"].shape[1])
        input_lengths, target_lengths = (torch.full((4,), length, device=log_probs.device) for length in lengths)
        loss = functional.ctc_loss(log_probs, batch["targets"], input_lengths, target_lengths)
        return {"loss": loss, "logs": log_probs}

    def batch() -> Batch:
        return {
            "inputs": torch.randn(10, 4, WIDTH, requires_grad=True),
            "targets": torch.randint(1, CLASSES, (4, 3)),
        }

    return Case("loss_ctc", lambda: nn.Linear(WIDTH, CLASSES), batch, loss)


def accumulated() -> Case:
    """Return a case of gradient accumulation in float32 over four micro-batches, each of which is cast separately."""

    def loss(model: nn.Module, batch: Batch) -> Batch:
        micro_batches = zip(batch["inputs"].chunk(4), batch["targets"].chunk(4), strict=True)
        losses = [functional.cross_entropy(model(x), y) / 4 for x, y in micro_batches]
        return {"loss": torch.stack(losses).sum()}

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, CLASSES))

    def batch() -> Batch:
        return {"inputs": torch.randn(32, WIDTH, requires_grad=True), "targets": torch.arange(32) % CLASSES}

    return Case("accumulated", build, batch, loss)
