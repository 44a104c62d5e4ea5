"""Vision cases: residual and U-Net blocks, a patch transformer, and grid sampling."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_amp.cases.case import Case
from pytest_amp.cases.zoo import Batch, classification


def _images(count: int, channels: int, pixels: int, classes: int) -> Batch:
    return {
        "inputs": torch.randn(count, channels, pixels, pixels, requires_grad=True),
        "targets": torch.randint(classes, (count,)),
    }


class ResidualBlock(nn.Module):
    """Two convolutions with BatchNorm, added to a 1x1 convolution of the input (He et al. 2015)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        """Create the layers, with SiLU instead of ReLU: at ReLU's kink, rounding would decide the gradient."""
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block. Shapes: (batch, inputs, height, width) to (batch, outputs, height, width)."""
        y = functional.silu(self.norm1(self.first(x)), inplace=True)
        return functional.silu(self.norm2(self.second(y)) + self.shortcut(x))


def residual() -> Case:
    """Return a case that guards sums of two branches of one dtype, an in-place activation, and BatchNorm statistics."""

    def build() -> nn.Module:
        return nn.Sequential(
            ResidualBlock(3, 64), ResidualBlock(64, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
        )

    return Case("residual", build, lambda: _images(4, 3, 10, 10), classification)


class UnetBlock(nn.Module):
    """Downsampling, upsampling and a skip connection, with GroupNorm (Ronneberger et al. 2015, Wu and He 2018)."""

    def __init__(self, width: int) -> None:
        """Create the layers, with three input channels, ``width`` at full resolution, ``2 * width`` at half."""
        super().__init__()
        self.above = nn.Conv2d(3, width, 3, padding=1)
        self.below = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.norm1, self.norm2 = nn.GroupNorm(4, width), nn.GroupNorm(4, 2 * width)
        self.out = nn.Conv2d(3 * width, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Predict an image. Shapes: (batch, 3, height, width) to the same."""
        above = functional.silu(self.norm1(self.above(x)))
        below = functional.silu(self.norm2(self.below(above)))
        wide = functional.interpolate(below, scale_factor=2.0, mode="bilinear", align_corners=False)
        joined: Tensor = self.out(torch.cat([above, wide], 1))
        return joined


def unet() -> Case:
    """Return a case that guards GroupNorm, interpolation, and ``cat`` of low-precision tensors, with an image MSE."""

    def loss(model: nn.Module, batch: Batch) -> Batch:
        image = model(batch["inputs"])
        return {"loss": functional.mse_loss(image, batch["inputs"].detach()), "image": image}

    return Case("unet", lambda: UnetBlock(16), lambda: {"inputs": torch.randn(2, 3, 12, 12, requires_grad=True)}, loss)


class PatchTransformer(nn.Module):
    """Vision transformer: image patches as tokens, learned positions and a class token (Dosovitskiy et al. 2020)."""

    def __init__(self, width: int, classes: int) -> None:
        """Create the layers for images of 12 pixels in patches of 4: nine tokens and the class token."""
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.answer = nn.Parameter(torch.randn(1, 1, width) / width**0.5)
        self.positions = nn.Parameter(torch.randn(1, 10, width) / width**0.5)
        self.layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Classify. Shapes: (batch, 3, 12, 12) to (batch, classes)."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.answer.expand(len(x), -1, -1), tokens], 1) + self.positions
        logits: Tensor = self.head(self.norm(self.layer(tokens))[:, 0])
        return logits


def patches() -> Case:
    """Return a case that guards ``cat`` of float32 parameters with low-precision tokens, and an encoder layer."""
    return Case("patches", lambda: PatchTransformer(32, 10), lambda: _images(4, 3, 12, 10), classification)


class Sampler(nn.Module):
    """Image sampler at float32 positions predicted by a convolution (Jaderberg et al. 2015, Dai et al. 2017).

    Each position stays within its own cell of four pixels, at least a tenth of a pixel from the border. The gradient
    with respect to a position is discontinuous at pixels, so without this margin rounding would decide on which side of
    a pixel a position lies, and with it the whole gradient.
    """

    def __init__(self) -> None:
        """Create two convolutions, one for features and one for positions."""
        super().__init__()
        self.features, self.where = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Sample. Shapes: (batch, 3, size, size) to (batch, 8, size - 1, size - 1)."""
        size, offset = x.shape[-1], self.where(x).float().permute(0, 2, 3, 1).tanh() * 0.4
        middle = torch.arange(size - 1, dtype=offset.dtype, device=x.device) + 0.5
        pixels = torch.stack(torch.meshgrid(middle, middle, indexing="xy"), -1) + offset
        return functional.grid_sample(self.features(x), (2 * pixels + 1) / size - 1, align_corners=False)


def sampling() -> Case:
    """Return a case that guards ``grid_sample``, which autocast runs in float32, and the gradient of its grid."""

    def loss(model: nn.Module, batch: Batch) -> Batch:
        sampled = model(batch["inputs"])
        return {"loss": sampled.float().square().mean(), "sampled": sampled}

    return Case("sampling", Sampler, lambda: {"inputs": torch.randn(2, 3, 9, 9, requires_grad=True)}, loss)
