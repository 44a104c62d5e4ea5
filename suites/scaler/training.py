"""Minimal training loop: one parameter, one product in the autocast dtype, one optimizer, one scaler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from pytest_amp.amp import SuiteAmp

INF, NAN = float("inf"), float("nan")

ScalerFactory = Callable[..., torch.amp.GradScaler]

BAD = pytest.mark.parametrize("bad", [None, INF, NAN], ids=["clean", "inf", "nan"])
EXPLICIT = pytest.mark.parametrize("explicit", [False, True], ids=["step", "unscale_ then step"])


def started(amp: SuiteAmp, scaler: torch.amp.GradScaler) -> torch.amp.GradScaler:
    """Return the scaler after its first ``scale``, which creates its tensors: gradients may then be assigned."""
    scaler.scale(torch.zeros((), device=amp.device.torch_device))
    return scaler


def step_and_update(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *, explicit: bool = False) -> None:
    """End an iteration, with a call of ``unscale_`` before the step if ``explicit``."""
    if explicit:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


#: Input of the product, and therefore the gradient; exact in every dtype.
INPUT = (1.0, -2.0, 3.0, 0.5)


@dataclass(frozen=True)
class Training:
    """Parameter of shape (4, 1), SGD with a power of two as its learning rate, and the scaler under test.

    Every value is a small multiple of a power of two, so every step is exact in float32.
    """

    amp: SuiteAmp
    scaler: torch.amp.GradScaler
    parameter: torch.nn.Parameter
    optimizer: torch.optim.Optimizer

    def backward(self, bad: float | None = None) -> None:
        """Run a scaled backward pass through a product in the autocast dtype; write ``bad`` to one gradient element."""
        self.optimizer.zero_grad()
        row = torch.tensor([INPUT], device=self.parameter.device)
        with self.amp.autocast():
            loss = torch.mm(row, self.parameter)
        assert loss.dtype is self.amp.dtype
        self.scaler.scale(loss.float().sum()).backward()
        if bad is not None:
            self.gradient[1, 0] = bad

    def plant(self, value: float = 1.0) -> None:
        """Set the gradient to ``value`` times the scale without backward: for scales that overflow a 16-bit product."""
        self.scaler.scale(torch.zeros((), device=self.parameter.device))
        self.parameter.grad = torch.full_like(self.parameter, value) * self.scaler.get_scale()

    def iterate(self, bad: float | None = None) -> tuple[float, int]:
        """Run one whole iteration; return scale and growth tracker after it."""
        self.backward(bad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.state

    @property
    def gradient(self) -> torch.Tensor:
        """Return the parameter's gradient, which must exist."""
        assert self.parameter.grad is not None
        return self.parameter.grad

    @property
    def state(self) -> tuple[float, int]:
        """Return scale and growth tracker, in the form of ``state_dict``."""
        saved = self.scaler.state_dict()
        return saved["scale"], saved["_growth_tracker"]


def expected_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Return the unscaled gradient of one backward pass."""
    return torch.tensor(INPUT, device=parameter.device).reshape(4, 1)


def training(amp: SuiteAmp, scaler: torch.amp.GradScaler) -> Training:
    """Return a training loop with ``scaler`` and a parameter of ones."""
    parameter = torch.nn.Parameter(torch.ones(4, 1, device=amp.device.torch_device))
    return Training(amp, scaler, parameter, torch.optim.SGD([parameter], lr=0.5))
