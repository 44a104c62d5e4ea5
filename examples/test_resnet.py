"""Convolutional network in the style of ResNet under mixed precision, with BatchNorm in training mode."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional


class Residual(nn.Module):
    """Two convolutions and a sum."""

    def __init__(self, width: int) -> None:
        """Create convolutions with as many output channels as input channels."""
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (batch, width, height, width) to the same."""
        y = functional.silu(self.norm1(self.conv1(x)))
        return functional.silu(x + self.norm2(self.conv2(y)))


def model() -> nn.Module:
    """Return a stem, two blocks, global pooling and a linear head."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.SiLU(),
        Residual(64),
        Residual(64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def batch() -> dict[str, Tensor]:
    """Return images that require gradients, which are therefore compared, too."""
    return {"images": torch.randn(4, 3, 16, 16, requires_grad=True), "classes": torch.randint(10, (4,))}


def loss(network: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return a scalar loss, which is enough."""
    return functional.cross_entropy(network(batch["images"]), batch["classes"])


def test_gradients(amp):
    """Check gradients of weights and images, and BatchNorm's running statistics, which must stay float32."""
    amp.check_gradients(amp.case(model, batch, loss, name="resnet"))


def test_dtypes(amp):
    """Check that convolutions and the head are low-precision, whatever their inputs."""
    amp.check_dtypes(amp.case(model, batch, loss), {"0": amp.dtype, "3.conv1": amp.dtype, "7": amp.dtype})


@pytest.mark.amp(dtypes=["bf16"])
def test_a_looser_bound_of_your_own(amp):
    """Replace the derived tolerance by an own one (relative L2 distance from float64)."""
    amp.check_gradients(amp.case(model, batch, loss, name="loose"), tolerance=0.1)
