"""Layers that have parameters, each as a case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pytest_amp.cases import Case

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """Constructor of a layer, the shapes of its float inputs, and the number of values of an integer input."""

    build: Callable[[], nn.Module]
    shapes: tuple[Shape, ...]
    indices: int | None = None


def case_of(name: str, layer: Layer) -> Case:
    """Return ``layer`` as a case: the loss weighs the elements of the first output differently."""

    def batch() -> list[Tensor]:
        if layer.indices is not None:
            return [torch.randint(layer.indices, shape) for shape in layer.shapes]
        return [torch.randn(shape, requires_grad=True) for shape in layer.shapes]

    def loss(model: nn.Module, tensors: list[Tensor]) -> dict[str, Tensor]:
        output: Any = model(*tensors)
        while not isinstance(output, Tensor):
            output = output[0]
        promoted = output.to(torch.promote_types(output.dtype, torch.float32))
        weights = torch.linspace(-1, 1, output.numel(), dtype=promoted.dtype, device=promoted.device).view_as(promoted)
        return {"loss": (promoted * weights).sum(), "result": output}

    return Case(name, layer.build, batch, loss)


class TwiceUsed(nn.Module):
    """One weight in two places: autocast casts it once, and both gradients go through that cast."""

    def __init__(self) -> None:
        """Create one square linear layer."""
        super().__init__()
        self.layer = nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer twice."""
        return self.layer(self.layer(x).tanh())  # type: ignore[no-any-return]


class FirstFrozen(nn.Module):
    """A frozen layer below one that is trained."""

    def __init__(self) -> None:
        """Create two linear layers, of which the first requires no gradients."""
        super().__init__()
        self.frozen = nn.Linear(24, 24).requires_grad_(requires_grad=False)
        self.trained = nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Pass gradients through the frozen layer to the input."""
        return self.trained(self.frozen(x).tanh())  # type: ignore[no-any-return]


class Unused(nn.Module):
    """Layer with a parameter that forward does not use; it has no gradient, with autocast or without."""

    def __init__(self) -> None:
        """Create a layer, and one that is left out."""
        super().__init__()
        self.used, self.unused = nn.Linear(24, 12), nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Apply only the first layer."""
        return self.used(x)  # type: ignore[no-any-return]


class DisabledRegion(nn.Module):
    """Disabled region: a part that its author keeps in float32."""

    def __init__(self) -> None:
        """Create a linear layer before the disabled region, and one within."""
        super().__init__()
        self.before, self.within = nn.Linear(24, 24), nn.Linear(24, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Run the second layer with autocast disabled."""
        x = self.before(x).to(self.within.weight.dtype)
        with torch.autocast(x.device.type, enabled=False):
            return self.within(x)  # type: ignore[no-any-return]


ROW: tuple[Shape, ...] = ((4, 6, 24),)
IMAGE: tuple[Shape, ...] = ((3, 8, 7, 7),)

LAYERS = {
    "Linear": Layer(lambda: nn.Linear(24, 12), ROW),
    "Bilinear": Layer(lambda: nn.Bilinear(8, 10, 12), ((6, 8), (6, 10))),
    "Conv1d": Layer(lambda: nn.Conv1d(6, 8, 3), ROW),
    "Conv2d": Layer(lambda: nn.Conv2d(8, 12, 3, padding=1), IMAGE),
    "Conv2d_reflect": Layer(lambda: nn.Conv2d(8, 12, 3, padding=1, padding_mode="reflect"), IMAGE),
    "Conv3d": Layer(lambda: nn.Conv3d(4, 6, 3), ((2, 4, 5, 5, 5),)),
    "ConvTranspose1d": Layer(lambda: nn.ConvTranspose1d(6, 8, 3, stride=2), ROW),
    "ConvTranspose2d": Layer(lambda: nn.ConvTranspose2d(8, 6, 3, stride=2), IMAGE),
    "ConvTranspose3d": Layer(lambda: nn.ConvTranspose3d(4, 3, 3, stride=2), ((2, 4, 3, 3, 3),)),
    "Embedding": Layer(lambda: nn.Sequential(nn.Embedding(20, 24), nn.Linear(24, 12)), ((4, 6),), indices=20),
    "EmbeddingBag": Layer(lambda: nn.Sequential(nn.EmbeddingBag(20, 24), nn.Linear(24, 12)), ((4, 6),), indices=20),
    "LayerNorm": Layer(lambda: nn.Sequential(nn.Linear(24, 24), nn.LayerNorm(24)), ROW),
    "LayerNorm_first": Layer(lambda: nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 24)), ROW),
    "RMSNorm": Layer(lambda: nn.Sequential(nn.RMSNorm(24), nn.Linear(24, 24)), ROW),
    "GroupNorm": Layer(lambda: nn.Sequential(nn.Conv2d(8, 12, 3), nn.GroupNorm(4, 12)), IMAGE),
    "BatchNorm1d": Layer(lambda: nn.Sequential(nn.Conv1d(6, 8, 3), nn.BatchNorm1d(8)), ROW),
    "BatchNorm2d": Layer(lambda: nn.Sequential(nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12)), IMAGE),
    "BatchNorm2d_plain": Layer(lambda: nn.Sequential(nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12, affine=False)), IMAGE),
    "BatchNorm2d_eval": Layer(lambda: nn.Sequential(nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12)).eval(), IMAGE),
    "InstanceNorm2d": Layer(lambda: nn.Sequential(nn.Conv2d(8, 12, 3), nn.InstanceNorm2d(12, affine=True)), IMAGE),
    "PReLU": Layer(lambda: nn.Sequential(nn.Linear(24, 12), nn.PReLU()), ROW),
    "LSTM": Layer(lambda: nn.LSTM(24, 16, num_layers=2, bidirectional=True), ROW),
    "GRU": Layer(lambda: nn.GRU(24, 16), ROW),
    "RNN": Layer(lambda: nn.RNN(24, 16), ROW),
    "LSTMCell": Layer(lambda: nn.LSTMCell(24, 16), ((6, 24),)),
    "GRUCell": Layer(lambda: nn.GRUCell(24, 16), ((6, 24),)),
    "RNNCell": Layer(lambda: nn.RNNCell(24, 16), ((6, 24),)),
    "MultiheadAttention": Layer(lambda: nn.MultiheadAttention(24, 4), ROW * 3),
    "TransformerEncoderLayer": Layer(lambda: nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0), ROW),
    "TransformerDecoderLayer": Layer(lambda: nn.TransformerDecoderLayer(24, 4, 48, dropout=0.0), ROW * 2),
    "twice_used": Layer(TwiceUsed, ROW),
    "first_frozen": Layer(FirstFrozen, ROW),
    "unused": Layer(Unused, ROW),
    "island": Layer(DisabledRegion, ROW),
}
