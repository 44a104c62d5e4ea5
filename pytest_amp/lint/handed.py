"""Objects that a recorded run passes to the user's functions: a device, a scaler, an evaluation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pytest_amp.cases import Case, loss_of
from pytest_amp.devices import Device
from pytest_amp.lint.place import Place, calling_place
from pytest_amp.lint.recorder import Recorder
from pytest_amp.precision import Precision
from pytest_amp.scaler.reference import UpdateRule
from pytest_amp.scaler.watched import WatchedScaler

#: Initial scale of GradScaler.
_SCALE = 2.0**16


class RecordedScaler(WatchedScaler):
    """Watched scaler whose own operations are distinguished from those of the training step."""

    def __init__(self, recorder: Recorder, device_type: str, *, enabled: bool) -> None:
        """Create the scaler with GradScaler's initial scale, enabled or not."""
        super().__init__(device_type, _SCALE, UpdateRule(growth_interval=10**6), enabled=enabled)
        self.recorder = recorder

    def scale(self, outputs: Any) -> Any:
        """Scale as GradScaler does, and note the operator calls that do so."""
        result = super().scale(outputs)
        if self.is_enabled() and isinstance(result, torch.Tensor):
            call = self.recorder.producer_of(result)
            if call is not None:
                self.recorder.program.scaled.append(call)
        return result


@dataclass(frozen=True)
class GivenDevice:
    """Device whose regions are noted as provided by the check."""

    device: Device
    recorder: Recorder

    def __getattr__(self, name: str) -> Any:
        """Delegate everything else to the device."""
        return getattr(self.device, name)

    @contextlib.contextmanager
    def autocast(self, dtype: torch.dtype, *, enabled: bool = True, cache_enabled: bool = True) -> Iterator[None]:
        """Enter the device's region, and note that the check provides it."""
        region = self.device.autocast(dtype, enabled=enabled, cache_enabled=cache_enabled)
        self.recorder.given_depth += 1
        try:
            region.__enter__()
        finally:
            self.recorder.given_depth -= 1
        with contextlib.ExitStack() as stack:
            stack.push(region.__exit__)
            yield


def idle_steps(optimizer: torch.optim.Optimizer) -> list[Place]:
    """Return a list to which the place of each step without gradients, or with only zero gradients, is appended."""
    places: list[Place] = []

    def before_step(stepping: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        gradients = [p.grad for group in stepping.param_groups for p in group["params"] if p.grad is not None]
        if not any(
            bool((gradient.coalesce().values() if gradient.is_sparse else gradient).any()) for gradient in gradients
        ):
            places.append(calling_place())

    optimizer.register_step_pre_hook(before_step)
    return places


@dataclass
class Evaluation:
    """Argument of a user's evaluation: the model, the batch, and the case's loss for both.

    If ``low`` is False, its regions are disabled.
    """

    model: torch.nn.Module
    batch: Any
    case: Case
    device: Device
    precision: Precision
    low: bool = True

    def loss(self) -> torch.Tensor:
        """Return the loss of the batch."""
        return loss_of(self.case.loss(self.model, self.batch))

    def autocast(self) -> Any:
        """Return a region of autocast on the device, in the dtype under test; disabled if ``low`` is False."""
        return self.device.autocast(self.precision.dtype, enabled=self.low)
