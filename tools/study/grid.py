"""The grid of the study of transformers: sizes, contexts, precisions, attention implementations, parts of a step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

#: Sizes by name: layers, width, heads. The MLP is four times as wide.
SIZES = {
    "small": (12, 768, 12),
    "medium": (24, 1024, 16),
    "large": (36, 1280, 20),
    "xl": (48, 1600, 25),
    "2.7B": (32, 2560, 32),
}
VOCABULARY = 10_000
CONTEXTS = (128, 256, 512, 1024, 2048)
BATCHES = (4,)
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
ATTENTIONS = ("math", "sdpa")
MODES = ("forward", "forward+backward", "step")
#: The precision of the warm-up before the eager time is measured: the cell's own, or float32.
WARM_UPS = ("own",)


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    size: str
    context: int
    batch: int
    precision: str
    attention: str
    mode: str
    warm_up: str = "own"

    def __str__(self) -> str:
        """Return the text of the progress line."""
        words = [self.size, str(self.context), self.precision, self.attention, self.mode, f"batch {self.batch}"]
        return ", ".join([*words, f"warmed up in {self.warm_up}"] if self.warm_up != "own" else words)


@dataclass(frozen=True)
class Choice:
    """Selection of a part of the grid."""

    sizes: Sequence[str] = tuple(SIZES)
    contexts: Sequence[int] = CONTEXTS
    batches: Sequence[int] = BATCHES
    precisions: Sequence[str] = PRECISIONS
    attentions: Sequence[str] = ATTENTIONS
    modes: Sequence[str] = MODES
    warm_ups: Sequence[str] = WARM_UPS

    def cells(self) -> Iterator[Cell]:
        """Yield the cells, small ones first, so that an interrupted run has measured some of everything."""
        grid = itertools.product(
            self.sizes, self.contexts, self.batches, self.attentions, self.modes, self.precisions, self.warm_ups
        )
        for size, context, batch, attention, mode, precision, warm_up in grid:
            if warm_up == "own" or precision not in ("fp32", "tf32"):
                yield Cell(size, context, batch, precision, attention, mode, warm_up)
