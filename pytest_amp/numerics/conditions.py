"""Where and how checks of numerics run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pytest_amp.devices import Device
from pytest_amp.numerics.step import Region
from pytest_amp.precision import Precision


@dataclass(frozen=True)
class Conditions:
    """Where and how a case is run, and by how much its tolerances are multiplied."""

    device: Device
    precision: Precision
    seed: int = 0
    tolerance_scale: float = 1.0

    @property
    def region(self) -> Region:
        """Mixed precision, as a user enters it."""
        return lambda: self.device.autocast(self.precision.dtype)

    def __str__(self) -> str:
        """As failures name it: ``autocast(cpu, bfloat16)``."""
        return f"autocast({self.device.key}, {self.precision.dtype_name})"

    def now(self, value: str) -> str:
        """``value`` and what computed it."""
        return f"{value}, on torch {torch.__version__}, {self.device.describe()}"
