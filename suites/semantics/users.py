"""Operators and layers that cast a weight: operators with the weight's shape, layers with an input."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

Shape = tuple[int, ...]


def _ones(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.ones(shape, device=like.device)


def _steps(like: torch.Tensor, *shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, math.prod(shape), device=like.device).view(shape)


#: Operators that cast a parameter on every device: the shape of one, which no other tensor has, and its use.
OPERATORS: dict[str, tuple[Shape, Callable[[torch.Tensor], torch.Tensor]]] = {
    "linear": ((7, 5), lambda w: functional.linear(_ones(w, 2, 5), w)),
    "matmul": ((5, 7), lambda w: _ones(w, 2, 5) @ w),
    "matmul left": ((7, 5), lambda w: w @ _ones(w, 5, 2)),
    "mm": ((5, 7), lambda w: torch.mm(_ones(w, 2, 5), w)),
    "addmm": ((5, 7), lambda w: torch.addmm(_ones(w, 7), _ones(w, 2, 5), w)),
    "addmm bias": ((2, 7), lambda w: torch.addmm(w, _ones(w, 2, 5), _ones(w, 5, 7))),
    "bmm": ((3, 5, 7), lambda w: torch.bmm(_ones(w, 3, 2, 5), w)),
    "baddbmm": ((3, 5, 7), lambda w: torch.baddbmm(_ones(w, 3, 2, 7), _ones(w, 3, 2, 5), w)),
    "addbmm": ((3, 5, 7), lambda w: torch.addbmm(_ones(w, 2, 7), _ones(w, 3, 2, 5), w)),
    "conv1d": ((7, 5, 3), lambda w: functional.conv1d(_ones(w, 2, 5, 6), w)),
    "conv2d": ((7, 5, 3, 2), lambda w: functional.conv2d(_ones(w, 2, 5, 6, 6), w)),
    "conv3d": ((7, 5, 3, 2, 1), lambda w: functional.conv3d(_ones(w, 2, 5, 6, 6, 6), w)),
    "conv_transpose1d": ((5, 7, 3), lambda w: functional.conv_transpose1d(_ones(w, 2, 5, 6), w)),
    "conv_transpose2d": ((5, 7, 3, 2), lambda w: functional.conv_transpose2d(_ones(w, 2, 5, 6, 6), w)),
    "conv_transpose3d": ((5, 7, 3, 2, 1), lambda w: functional.conv_transpose3d(_ones(w, 2, 5, 6, 6, 6), w)),
    "prelu": ((5,), lambda w: functional.prelu(_ones(w, 2, 5).neg(), w)),
    "attention": (
        (1, 2, 3, 8),
        lambda w: functional.scaled_dot_product_attention(w, _steps(w, 1, 2, 5, 8), _steps(w, 1, 2, 5, 8)),
    ),
}


class Einsum(nn.Module):
    """Product over two axes by einsum."""

    def __init__(self) -> None:
        """Create one weight."""
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: (batch, row, 8) and (4, 8, 5) to (batch, 4, row, 5)."""
        return torch.einsum("brk,hkd->bhrd", x, self.weight)


class Attention(nn.Module):
    """``scaled_dot_product_attention`` between its projections."""

    def __init__(self) -> None:
        """Create one projection to queries, keys and values, and one back."""
        super().__init__()
        self.into, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Use two heads of four."""
        heads = self.into(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        return self.out(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Indexed(nn.Module):
    """Embedding that feeds a layer and is that layer's weight, too (tied)."""

    def __init__(self) -> None:
        """Create one table."""
        super().__init__()
        self.table = nn.Embedding(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Use the input's number of rows only."""
        rows = torch.arange(x.shape[1], device=x.device).expand(x.shape[0], -1)
        return functional.linear(self.table(rows) + x, self.table.weight)


_ROWS, _IMAGE = (2, 3, 8), (2, 4, 6, 6)

#: Layers whose weights are cast on every device, and the shape of an input.
LAYERS: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    "Linear": (lambda: nn.Linear(8, 4), _ROWS),
    "einsum": (Einsum, _ROWS),
    "embedding, tied": (Indexed, _ROWS),
    "attention layer": (Attention, _ROWS),
    "MultiheadAttention": (lambda: _First(nn.MultiheadAttention(8, 2, batch_first=True), times=3), _ROWS),
    "RNNCell": (lambda: nn.RNNCell(8, 4), (3, 8)),
    "LSTMCell": (lambda: _First(nn.LSTMCell(8, 4)), (3, 8)),
    "GRUCell": (lambda: nn.GRUCell(8, 4), (3, 8)),
    "GRU": (lambda: _First(nn.GRU(8, 4)), _ROWS),
    "RNN": (lambda: _First(nn.RNN(8, 4)), _ROWS),
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3), _ROWS),
    "Conv2d": (lambda: nn.Conv2d(4, 6, 3), _IMAGE),
    "Conv3d": (lambda: nn.Conv3d(4, 6, 3), (2, 4, 5, 5, 5)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(3, 4, 3), _ROWS),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3), _IMAGE),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(4, 6, 3), (2, 4, 5, 5, 5)),
    "PReLU": (lambda: nn.Sequential(nn.Linear(8, 8), nn.PReLU()), _ROWS),
}


class _First(nn.Module):
    """First result of a layer, called ``times`` times on the same input."""

    def __init__(self, layer: nn.Module, *, times: int = 1) -> None:
        super().__init__()
        self.layer, self.times = layer, times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(*[x] * self.times)[0]  # type: ignore[no-any-return]
