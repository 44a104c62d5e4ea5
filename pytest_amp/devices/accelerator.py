"""Accelerators: CUDA (including ROCm, whose device type in torch is ``cuda``), and those of torch.accelerator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_amp.devices.base import DeviceKind

if TYPE_CHECKING:
    import torch


class AcceleratorDevice:
    """Accelerator that is used through torch's device-agnostic API: xpu, mps, mtia, or a PrivateUse1 back end."""

    kind = DeviceKind.ACCELERATOR

    def __init__(self, device_type: str, index: int | None = None) -> None:
        """Store the type and index; ``index`` is None for the current device of ``device_type``."""
        self.type = self.key = device_type
        self.index = index
        self.name = device_type if index is None else f"{device_type}:{index}"

    @property
    def torch_device(self) -> torch.device:
        """The ``torch.device`` of this type and index."""
        import torch

        return torch.device(self.name)

    @contextlib.contextmanager
    def autocast(self, dtype: torch.dtype, *, enabled: bool = True, cache_enabled: bool = True) -> Iterator[None]:
        """Enter ``torch.autocast(type, dtype)``."""
        import torch

        with torch.autocast(self.type, dtype, enabled=enabled, cache_enabled=cache_enabled):
            yield

    @contextlib.contextmanager
    def tensors(self) -> Iterator[None]:
        """Do nothing: tensors on an accelerator can be created in any context."""
        yield

    def synchronize(self) -> None:
        """Call ``torch.accelerator.synchronize``, which raises the errors of earlier kernels."""
        import torch

        torch.accelerator.synchronize(self.torch_device)

    def describe(self) -> str:
        """Return the name of the torch device, such as ``xpu:0``: torch.accelerator has no name of the hardware."""
        return self.name

    def provenance(self) -> dict[str, str]:
        """Return the description of the device."""
        return {"accelerator": self.describe()}


class CudaDevice(AcceleratorDevice):
    """NVIDIA GPU, or AMD GPU with ROCm."""

    def __init__(self, index: int | None = None) -> None:
        """Store the index among the visible devices of this process; None is the current device."""
        super().__init__("cuda", index)

    def synchronize(self) -> None:
        """Wait for the GPU: ``torch.cuda.synchronize``."""
        import torch

        torch.cuda.synchronize(self.torch_device)

    def describe(self) -> str:
        """Return the name of the GPU that the driver reports."""
        import torch

        return torch.cuda.get_device_name(self.torch_device)

    def provenance(self) -> dict[str, str]:
        """Return the name of the GPU, its compute capability, and the versions of driver, CUDA or ROCm, and cuDNN."""
        import torch

        from pytest_amp.devices import nvml

        driver = None if torch.version.hip else nvml.driver_version() or f"unknown ({nvml.lacking()})"
        major, minor = torch.cuda.get_device_capability(self.torch_device)
        return {
            "gpu": self.describe(),
            "compute_capability": f"{major}.{minor}",
            "driver": str(driver),
            "cuda": str(torch.version.cuda),
            "hip": str(torch.version.hip),
            "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call,unused-ignore]
        }
