"""One row of the table of models, and functions that the rows share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias

import torch
from packaging.version import Version
from torch import Tensor, nn

#: Name of the library that is this project's own torch: such a model is never skipped.
TORCH = "torch"

Batch: TypeAlias = dict[str, Any]
#: Dtype of a module's outputs: that of autocast, or float32.
Width: TypeAlias = Literal["low", "float32"]


@dataclass(frozen=True)
class RealModel:
    """A model at a tiny size, with random weights.

    ``library`` is the package that ``build`` imports, ``since`` its first release that has the model, if a later one
    than the others need, and ``also`` another package that the library needs. ``shows`` names what
    is special about the model, for the table in docs/lab/real-models.md. ``build``, ``batch`` and ``loss`` are those
    of ``amp.case``. ``steps`` of AdamW with a learning rate of ``rate`` move the loss by more than what it draws
    does. ``dtypes`` maps module paths to the widths of their outputs. ``selected`` models are compiled
    and traced, too.
    """

    name: str
    library: str
    shows: str
    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[nn.Module, Batch], Any]
    steps: int = 20
    rate: float = 1e-3
    dtypes: Mapping[str, Width] = field(default_factory=dict)
    selected: bool = False
    also: str = TORCH
    since: str | None = None

    @property
    def missing(self) -> str | None:
        """Reason for which the model cannot be built: a library that is not installed, or too old; none is imported."""
        for name in (self.library, self.also):
            if find_spec(name) is None:
                return f"{name} is not installed"
        if self.since is not None and Version(installed := metadata.version(self.library)) < Version(self.since):
            return f"{self.library} {installed} is installed, and the model needs {self.since} or later"
        return None


def called_with_batch(model: nn.Module, batch: Batch) -> Any:
    """Return the outputs of a model that takes the batch as keywords and computes its own loss."""
    return model(**batch)


def tokens(rows: int, columns: int, *, vocabulary: int = 96, first: int = 4) -> Tensor:
    """Return random token ids above the ``first`` ones, which libraries use for padding, begin and end."""
    return torch.randint(first, vocabulary, (rows, columns))


def padding(rows: int, columns: int) -> Tensor:
    """Return an attention mask whose rows lose one more token each: int64, ones then zeros."""
    lengths = columns - torch.arange(rows)[:, None]
    return (torch.arange(columns)[None] < lengths).long()
