"""Small training tasks: the characters of a text that is shipped with Python, and generated images."""

from __future__ import annotations

import codecs
import functools
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pytest_amp.cases import Case, Decoder, DecoderSize, MakeOptimizer, classification

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Task:
    """Training task: a case that draws a new batch in each step, evaluation data, optimizer and number of steps.

    ``learned`` is an accuracy that a float32 run of ``steps`` steps reaches easily.
    """

    case: Case
    evaluation: Callable[[], Batch]
    steps: int
    optimizer: MakeOptimizer
    learned: float


def _adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def _momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@functools.cache
def zen() -> str:
    """Return the Zen of Python (PEP 20), decoded from the source of the module ``this``, which prints it on import."""
    loader: Any = getattr(importlib.util.find_spec("this"), "loader", None)
    match = re.search(r'"""(.+?)"""', loader.get_source("this"), re.DOTALL) if loader is not None else None
    if match is None:
        raise LookupError("this Python has no source of its module this")
    return codecs.decode(match.group(1), "rot13")


@functools.cache
def _encoded() -> tuple[Tensor, int]:
    text = zen()
    characters = sorted(set(text))
    return torch.tensor([characters.index(character) for character in text]), len(characters)


def _windows(starts: Tensor, context: int) -> Batch:
    codes, _ = _encoded()
    rows = codes[starts.unsqueeze(1) + torch.arange(context + 1)]
    return {"inputs": rows[:, :-1], "targets": rows[:, 1:]}


def characters(*, steps: int = 60, width: int = 32, batch: int = 16, context: int = 32) -> Task:
    """Return a task: a one-layer decoder that memorises the Zen of Python, character by character.

    The evaluation uses fixed windows of the same text, since the task is to memorise it.
    """
    codes, vocabulary = _encoded()

    def draw() -> Batch:
        return _windows(torch.randint(len(codes) - context, (batch,)), context)

    def evaluation() -> Batch:
        return _windows(torch.arange(0, len(codes) - context, context), context)

    size = DecoderSize(layers=1, width=width, heads=2, vocabulary=vocabulary)
    case = Case("characters", lambda: Decoder(size), draw, classification)
    return Task(case, evaluation, steps, _adamw, 0.4)


def _drawn(count: int, pixels: int = 8) -> Batch:
    """Generate noisy images, each with a horizontal, vertical or diagonal bar at a random position.

    Shape of the images: (count, 1, pixels, pixels).
    """
    targets = torch.randint(4, (count,))
    rows, columns = torch.meshgrid(torch.arange(pixels), torch.arange(pixels), indexing="ij")
    lines = torch.stack([rows, columns, rows + columns, rows - columns + pixels])
    place = torch.randint(2, pixels - 2, (count, 1, 1))
    # The indices of diagonals go up to twice the width. Use the middle ones, so that all bars have a similar length.
    place = torch.where((targets >= 2).view(-1, 1, 1), place + pixels // 2, place)
    bars = (lines[targets] == place).float().unsqueeze(1)
    return {"inputs": bars + 0.35 * torch.randn(bars.shape), "targets": targets}


def images(*, steps: int = 40, width: int = 8, batch: int = 32) -> Task:
    """Return a task: a small convolutional network that classifies bars of four directions, evaluated on new data."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.SiLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1, stride=2, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * width, 4),
        )

    case = Case("images", build, lambda: _drawn(batch), classification)
    return Task(case, lambda: _drawn(512), steps, _momentum, 0.8)


def accuracy(model: nn.Module, batch: Batch) -> float:
    """Return the accuracy of ``model`` in its current mode, under the autocast state of the caller."""
    with torch.no_grad():
        predicted = model(batch["inputs"]).flatten(0, -2).argmax(-1)
    return float((predicted == batch["targets"].flatten()).double().mean())
