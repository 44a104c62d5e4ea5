"""Fake devices: the autocast rules of a back end, without hardware and without a special build.

``torch.autocast("cuda")`` turns itself off without CUDA, but the state beneath it does not check, and the AutocastCUDA
kernels are in every build: with that state set, under fake tensors, operators dispatch exactly as on the device. There
are no values; only the rules apply.
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
    """Rules of ``device_type``, evaluated under fake tensors."""

    kind = DeviceKind.FAKE

    def __init__(self, device_type: str) -> None:
        """Keep the device type, one of torch's: cuda, xpu, mps or mtia."""
        self.type = device_type
        self.name = f"fake:{device_type}"
        self.key = f"fake-{device_type}"

    @property
    def torch_device(self) -> torch.device:
        """Device of the fake tensors."""
        import torch

        return torch.device(self.type)

    def autocast(
        self, dtype: torch.dtype, *, enabled: bool = True, cache_enabled: bool = True
    ) -> AbstractContextManager[None]:
        """Enter a region on a device without hardware."""
        return region_state(self.type, dtype, enabled=enabled, cache_enabled=cache_enabled)

    @contextlib.contextmanager
    def tensors(self) -> Iterator[None]:
        """Enter fake tensors without gradients: one that requires grad aborts the process on a CPU-only build."""
        import torch

        with torch_private.fake_tensor_mode(), torch.no_grad(), self.refusing():
            yield

    def refusing(self) -> AbstractContextManager[object]:
        """Enter a scope in which uses that would end the process raise AmpUsageError instead."""
        from pytest_amp.devices.refused import refusing

        return refusing(self.type)

    def synchronize(self) -> None:
        """Do nothing: no kernel runs on a fake device."""

    def describe(self) -> str:
        """Return a text that says that there is no hardware."""
        return f"fake tensors, {self.type} rules"

    def provenance(self) -> dict[str, str]:
        """Return nothing: rules under fake tensors depend on torch alone."""
        return {}
