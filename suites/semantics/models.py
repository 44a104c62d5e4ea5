"""Small models for tests of autocast's guarantees about parameters, gradients and buffers."""

from __future__ import annotations

import torch
from torch import nn

from pytest_amp.amp import SuiteAmp


class Small(nn.Module):
    """Model with linear layers (one frozen), BatchNorm, LayerNorm, a weight used twice, and a constant buffer."""

    constant: torch.Tensor

    def __init__(self) -> None:
        """Initialize the parameters from torch's global generator."""
        super().__init__()
        self.first = nn.Linear(8, 16, bias=False)  # a bias before BatchNorm would have a gradient of 0
        self.norm = nn.BatchNorm1d(16)
        self.frozen = nn.Linear(16, 16).requires_grad_(requires_grad=False)
        self.middle = nn.Sequential(nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 8))
        self.register_buffer("constant", torch.full((8,), 1.1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Map (batch, 8) to (batch, 16); the last product uses the first layer's weight again."""
        hidden = self.middle(self.frozen(self.norm(self.first(batch)).relu())) * self.constant
        return nn.functional.linear(hidden, self.first.weight)


def small(amp: SuiteAmp) -> tuple[Small, torch.Tensor]:
    """Return a model and a batch on the device, with the same values in each call of a test: both are seeded."""
    torch.manual_seed(amp.config.seed)
    return Small().to(amp.device.torch_device), torch.randn(8, 8).to(amp.device.torch_device)


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Return the mean square of the model's output on the batch, in float32."""
    result: torch.Tensor = model(batch)
    return result.float().square().mean()


def drawn(amp: SuiteAmp, *shape: int) -> torch.Tensor:
    """Return normally distributed float32 values on the device; they are drawn on the CPU."""
    return torch.randn(shape).to(amp.device.torch_device)


def state_of(model: nn.Module) -> list[torch.Tensor]:
    """Return copies of a model's parameters and buffers."""
    return [tensor.detach().clone() for tensor in model.state_dict().values()]


def statistic(tensor: torch.Tensor | None) -> torch.Tensor:
    """Return a running statistic of a layer that has it; narrows the type for mypy."""
    assert tensor is not None
    return tensor
