"""Modules of torch.nn that no other test covers, each after a linear layer with low-precision output."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .layers import Layer, Shape

ROWS, IMAGES, VOLUMES = (4, 6, 24), (2, 4, 8, 12), (2, 3, 4, 6, 8)


class Behind(nn.Module):
    """Linear layer along the last dimension, and a module that receives its output."""

    def __init__(self, width: int, module: nn.Module) -> None:
        """``width`` is the size of the last dimension."""
        super().__init__()
        self.layer, self.module = nn.Linear(width, width), module

    def forward(self, x: Tensor) -> Tensor:
        """Return the module's output; its input is low-precision in an enabled region."""
        return self.module(self.layer(x))  # type: ignore[no-any-return]


class Loss(nn.Module):
    """Loss of its input, with targets made from the input's shape."""

    def __init__(self, loss: nn.Module, *targets: Callable[[Tensor], Tensor]) -> None:
        """Each of ``targets`` computes one further argument of ``loss`` from the input."""
        super().__init__()
        self.loss, self.targets = loss, targets

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss of rows of logits."""
        return self.loss(x.flatten(0, -2), *(target(x.detach().flatten(0, -2)) for target in self.targets))  # type: ignore[no-any-return]


def behind(module: Callable[[], nn.Module], shape: Shape = ROWS) -> Layer:
    """Return ``module`` behind a linear layer, with inputs of ``shape``."""
    return Layer(lambda: Behind(shape[-1], module()), (shape,))


def loss(module: Callable[[], nn.Module], *targets: Callable[[Tensor], Tensor]) -> Layer:
    """Return a loss after a linear layer; every element of a loss without reduction is checked."""
    return behind(lambda: Loss(module(), *targets))


def _along(x: Tensor) -> Tensor:
    """Return float32 values between -1 and 1, of the shape of ``x``; float64 for a float64 ``x``."""
    return torch.linspace(-1, 1, x.numel(), device=x.device, dtype=_wide(x)).view_as(x).roll(7)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _classes(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0], device=x.device) * 7 % x.shape[1]


def _shares(x: Tensor) -> Tensor:
    return _along(x).softmax(-1)


def _signs(x: Tensor) -> Tensor:
    return _along(x).sign()


def _hits(x: Tensor) -> Tensor:
    return (_along(x) > 0).to(_wide(x))


class Probabilities(nn.Module):
    """Float32 probabilities of low-precision logits, as ``nn.BCELoss`` requires."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute in float32, in any region."""
        return x.to(_wide(x)).sigmoid()


class Unpooled(nn.Module):
    """Max pooling, and unpooling of the maxima to their original positions."""

    def __init__(self, pool: nn.Module, unpool: nn.Module) -> None:
        """Take a ``pool`` that returns indices."""
        super().__init__()
        self.pool, self.unpool = pool, unpool

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of ``x``."""
        return self.unpool(*self.pool(x))  # type: ignore[no-any-return]


POOLS = {
    "AdaptiveAvgPool1d": behind(lambda: nn.AdaptiveAvgPool1d(5)),
    "AdaptiveAvgPool3d": behind(lambda: nn.AdaptiveAvgPool3d((2, 4, 3)), VOLUMES),
    "AdaptiveMaxPool1d": behind(lambda: nn.AdaptiveMaxPool1d(5)),
    "AdaptiveMaxPool2d": behind(lambda: nn.AdaptiveMaxPool2d((3, 5)), IMAGES),
    "AdaptiveMaxPool3d": behind(lambda: nn.AdaptiveMaxPool3d((2, 4, 3)), VOLUMES),
    "AvgPool1d": behind(lambda: nn.AvgPool1d(3, 2, 1)),
    "AvgPool3d": behind(lambda: nn.AvgPool3d(2, 1), VOLUMES),
    "MaxPool1d": behind(lambda: nn.MaxPool1d(3, 2, 1)),
    "MaxPool3d": behind(lambda: nn.MaxPool3d(2, 1), VOLUMES),
    "LPPool1d": behind(lambda: nn.LPPool1d(2, 3, 2)),
    "LPPool2d": behind(lambda: nn.LPPool2d(2, 3, 2), IMAGES),
    "LPPool3d": behind(lambda: nn.LPPool3d(2, 2), VOLUMES),
    "MaxUnpool1d": behind(lambda: Unpooled(nn.MaxPool1d(2, return_indices=True), nn.MaxUnpool1d(2))),
    "MaxUnpool2d": behind(lambda: Unpooled(nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)), IMAGES),
    "MaxUnpool3d": behind(lambda: Unpooled(nn.MaxPool3d(2, return_indices=True), nn.MaxUnpool3d(2)), VOLUMES),
}

SHAPES = {
    "ChannelShuffle": behind(lambda: nn.ChannelShuffle(2), IMAGES),
    "PixelShuffle": behind(lambda: nn.PixelShuffle(2), IMAGES),
    "PixelUnshuffle": behind(lambda: nn.PixelUnshuffle(2), IMAGES),
    "Fold": behind(lambda: nn.Fold((5, 8), 3), (2, 18, 18)),
    "Unfold": behind(lambda: nn.Unfold(3, padding=1), IMAGES),
    "Unflatten": behind(lambda: nn.Unflatten(-1, (4, 6))),
    "Upsample": behind(lambda: nn.Upsample(scale_factor=2.0, mode="bilinear"), IMAGES),
    "UpsamplingBilinear2d": behind(lambda: nn.UpsamplingBilinear2d(scale_factor=2), IMAGES),
    "UpsamplingNearest2d": behind(lambda: nn.UpsamplingNearest2d(scale_factor=2), IMAGES),
    **{
        f"{name}{dims}d": behind(lambda name=name, dims=dims: getattr(nn, f"{name}{dims}d")(2), shape)  # type: ignore[misc]
        for name in ("CircularPad", "ReflectionPad", "ReplicationPad", "ZeroPad")
        for dims, shape in ((1, ROWS), (2, IMAGES), (3, VOLUMES))
    },
    **{
        f"ConstantPad{dims}d": behind(lambda dims=dims: getattr(nn, f"ConstantPad{dims}d")(2, 0.1), shape)  # type: ignore[misc]
        for dims, shape in ((1, ROWS), (2, IMAGES), (3, VOLUMES))
    },
}

FUNCTIONS = {
    name: behind(getattr(nn, name))
    for name in (
        *("CELU", "ELU", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid", "Mish", "ReLU6", "SELU"),
        *("Sigmoid", "Softplus", "Softshrink", "Hardshrink", "Softsign", "Tanhshrink", "GLU"),
    )
} | {
    "Threshold": behind(lambda: nn.Threshold(0.1, -1.0)),
    "RReLU": behind(lambda: nn.RReLU().eval()),
    "Softmin": behind(lambda: nn.Softmin(-1)),
    "Softmax2d": behind(nn.Softmax2d, IMAGES),
    "InstanceNorm1d": behind(lambda: nn.InstanceNorm1d(6, affine=True)),
    "InstanceNorm3d": behind(lambda: nn.InstanceNorm3d(3, affine=True), VOLUMES),
    "LocalResponseNorm": behind(lambda: nn.LocalResponseNorm(3, alpha=0.5), IMAGES),
    "CosineSimilarity": loss(lambda: nn.CosineSimilarity(-1), _along),
    "PairwiseDistance": loss(nn.PairwiseDistance, _along),
}

LOSSES = {
    "BCELoss": behind(lambda: nn.Sequential(Probabilities(), Loss(nn.BCELoss(reduction="sum"), _hits))),
    "BCEWithLogitsLoss": loss(nn.BCEWithLogitsLoss, _hits),
    "CrossEntropyLoss": loss(nn.CrossEntropyLoss, _classes),
    "GaussianNLLLoss": loss(nn.GaussianNLLLoss, _along, lambda x: _along(x).square() + 0.5),
    "HuberLoss": loss(nn.HuberLoss, _along),
    "KLDivLoss": behind(lambda: nn.Sequential(nn.LogSoftmax(-1), Loss(nn.KLDivLoss(reduction="batchmean"), _shares))),
    "L1Loss": loss(nn.L1Loss, _along),
    "MSELoss": loss(nn.MSELoss, _along),
    "MultiLabelSoftMarginLoss": loss(nn.MultiLabelSoftMarginLoss, _hits),
    "NLLLoss": behind(lambda: nn.Sequential(nn.LogSoftmax(-1), Loss(nn.NLLLoss(), _classes))),
    "PoissonNLLLoss": loss(nn.PoissonNLLLoss, lambda x: _along(x).square()),
    "SmoothL1Loss": loss(nn.SmoothL1Loss, _along),
    "SoftMarginLoss": loss(nn.SoftMarginLoss, _signs),
    "TripletMarginLoss": loss(lambda: nn.TripletMarginLoss(margin=10.0), _along, _signs),
    "TripletMarginWithDistanceLoss": loss(lambda: nn.TripletMarginWithDistanceLoss(margin=10.0), _along, _signs),
    "CosineEmbeddingLoss": loss(
        lambda: nn.CosineEmbeddingLoss(margin=-0.9), _along, lambda x: _classes(x) % 2 * 2 - 1
    ),
    "MarginRankingLoss": loss(lambda: nn.MarginRankingLoss(margin=10.0), _along, _signs),
    "HingeEmbeddingLoss": loss(lambda: nn.HingeEmbeddingLoss(margin=10.0), _signs),
}  # fmt: skip

MODULES = {**POOLS, **SHAPES, **FUNCTIONS, **LOSSES}
