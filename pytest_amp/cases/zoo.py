"""Built-in cases: one of each kind of network, small enough for a CPU."""

from __future__ import annotations

import enum
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_amp.cases.case import Case
from pytest_amp.cases.decoder import SMALL, Attention, Decoder, DecoderSize

Batch = dict[str, Tensor]


def classification(model: nn.Module, batch: Batch) -> Batch:
    """Return the cross-entropy of ``model(inputs)`` against ``targets``; classes are the last dimension."""
    logits = model(batch["inputs"])
    loss = functional.cross_entropy(logits.flatten(0, -2), batch["targets"].flatten())
    return {"loss": loss, "logits": logits}


def _classified(*shape: int, classes: int) -> Callable[[], Batch]:
    """Return a function that draws normal inputs of ``shape``, which require gradients, and a class per sample."""

    def batch() -> Batch:
        inputs = torch.randn(shape, requires_grad=True)
        return {"inputs": inputs, "targets": torch.randint(classes, shape[:1])}

    return batch


def mlp(*, inputs: int = 64, width: int = 256, classes: int = 10, batch: int = 32) -> Case:
    """Return a case of linear layers with tanh, LayerNorm and GELU: smooth functions, which amplify rounding little."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Linear(inputs, width),
            nn.Tanh(),
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Linear(width, classes),
        )

    return Case("mlp", build, _classified(batch, inputs, classes=classes), classification)


class Kinks(enum.Enum):
    """Choice of functions with kinks (ReLU, max-pooling) or without (SiLU, average-pooling).

    At a kink, rounding decides the direction of a gradient. A few such decisions make most of the error, a hundred
    times one rounding in fp16, and hide everything else.
    """

    NONE = "none"
    RELU = "relu"


def cnn(*, width: int = 64, classes: int = 10, batch: int = 8, pixels: int = 12, kinks: Kinks = Kinks.NONE) -> Case:
    """Return a case of convolutions with BatchNorm in training mode, pooling and a linear head.

    ``width`` is the number of channels: 64 or more, so that the statistics have enough values to show whether they were
    rounded.
    """

    def build() -> nn.Module:
        activation, pool = (nn.ReLU, nn.MaxPool2d) if kinks is Kinks.RELU else (nn.SiLU, nn.AvgPool2d)
        return nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.BatchNorm2d(width),
            activation(),
            pool(2),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            activation(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, classes),
        )

    name = {Kinks.NONE: "cnn", Kinks.RELU: "cnn_relu"}[kinks]
    return Case(name, build, _classified(batch, 3, pixels, pixels, classes=classes), classification)


def decoder(
    size: DecoderSize = SMALL,
    *,
    batch: int = 4,
    context: int = 32,
    attention: Attention = Attention.SDPA,
    tied: bool = False,
) -> Case:
    """Return a case of a transformer decoder that predicts tokens; ``context`` is the number of tokens in a row."""

    def build() -> nn.Module:
        return Decoder(size, attention=attention, tied=tied)

    def tokens() -> Batch:
        rows = torch.randint(size.vocabulary, (batch, context + 1))
        return {"inputs": rows[:, :-1], "targets": rows[:, 1:]}

    suffix = {Attention.SDPA: "", Attention.SOFTMAX: "_softmax"}[attention] + ("_tied" if tied else "")
    return Case(f"decoder{suffix}", build, tokens, classification)


class SequenceClassifier(nn.Module):
    """LSTM with a linear layer on its last output."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        """Create one LSTM layer of ``width`` units and the head."""
        super().__init__()
        self.lstm = nn.LSTM(inputs, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Classify. Shapes: (batch, steps, inputs) to (batch, classes)."""
        states, _ = self.lstm(x)
        logits: Tensor = self.head(states[:, -1])
        return logits


def lstm(*, inputs: int = 32, width: int = 64, classes: int = 10, batch: int = 8, steps: int = 12) -> Case:
    """Return a case of an LSTM over ``steps`` steps."""

    def build() -> nn.Module:
        return SequenceClassifier(inputs, width, classes)

    return Case("lstm", build, _classified(batch, steps, inputs, classes=classes), classification)


def zoo() -> tuple[Case, ...]:
    """Return the cases of the gradient suites, in a fixed order."""
    return (
        mlp(),
        cnn(),
        cnn(kinks=Kinks.RELU),
        decoder(),
        decoder(attention=Attention.SOFTMAX),
        decoder(tied=True),
        lstm(),
    )
