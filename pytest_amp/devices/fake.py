"""Fake devices: another back end's autocast rules, with no hardware and no special build.

``torch.autocast("cuda")`` switches itself off where there is no CUDA, but the state beneath it does
not check, and the AutocastCUDA kernels are in every build: with that state set and under fake
tensors, operators dispatch just as they do on the device. Values do not exist here; only rules do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from pytest_amp import torch_private
from pytest_amp.devices.base import DeviceKind
from pytest_amp.devices.region import region_state

if TYPE_CHECKING:
    import torch


class FakeDevice:
    """The rules of ``device_type``, read under fake tensors."""

    kind = DeviceKind.FAKE

    def __init__(self, device_type: str) -> None:
        """``device_type`` is torch's: cuda, xpu, mps or mtia."""
        self.type = device_type
        self.name = f"fake:{device_type}"
        self.key = f"fake-{device_type}"

    @property
    def torch_device(self) -> torch.device:
        """The device that fake tensors carry."""
        import torch

        return torch.device(self.type)

    def autocast(
        self, dtype: torch.dtype, *, enabled: bool = True, cache_enabled: bool = True
    ) -> AbstractContextManager[None]:
        """A region on a device that is not there."""
        return region_state(self.type, dtype, enabled=enabled, cache_enabled=cache_enabled)

    @contextlib.contextmanager
    def tensors(self) -> Iterator[None]:
        """Fake tensors without gradients: one that requires grad aborts the process on a CPU-only build."""
        import torch

        with torch_private.fake_tensor_mode(), torch.no_grad(), self.refusing():
            yield

    def refusing(self) -> AbstractContextManager[object]:
        """A scope in which uses that torch cannot stand raise Misuse, which would end the process."""
        from pytest_amp.devices.refused import refusing

        return refusing(self.type)

    def synchronize(self) -> None:
        """Nothing runs on a fake device."""

    def describe(self) -> str:
        """That there is no hardware."""
        return f"fake tensors, {self.type} rules"

    def provenance(self) -> dict[str, str]:
        """Rules under fake tensors depend on torch alone."""
        return {}
