"""What a test runs on: one device and one precision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from pytest_amp.devices.base import Device
from pytest_amp.precision import Precision

if TYPE_CHECKING:
    from pytest_amp.cases import Case


@dataclass(frozen=True)
class Target:
    """One device and one precision. ``missing`` says why a device or dtype that may be missing is."""

    device: Device
    precision: Precision
    missing: str | None = None
    config: pytest.Config | None = field(default=None, compare=False, repr=False)

    @property
    def id(self) -> str:
        """The part of test ids: ``cuda-bf16``, ``fake-xpu-fp16``."""
        return f"{self.device.key}-{self.precision.name}"

    def added_cases(self) -> list[Case]:
        """The cases that the hook pytest_amp_cases yields."""
        if self.config is None:
            return []
        groups: list[Iterable[Case]] = self.config.hook.pytest_amp_cases()
        return [case for group in groups for case in group]
