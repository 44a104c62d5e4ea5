"""Real accelerators: CUDA (and ROCm, which torch calls cuda), and any other that torch.accelerator supports."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pytest_amp.devices.base import DeviceKind

if TYPE_CHECKING:
    import torch


class AcceleratorDevice:
    """An accelerator reached through torch's device-agnostic API: xpu, mps, mtia, a PrivateUse1 back end."""

    kind = DeviceKind.ACCELERATOR

    def __init__(self, device_type: str, index: int | None = None) -> None:
        """Keep the type and index; ``index`` is None for the current device of ``device_type``."""
        self.type = self.key = device_type
        self.index = index
        self.name = device_type if index is None else f"{device_type}:{index}"

    @property
    def torch_device(self) -> torch.device:
        """``torch.device(type)``, with the index if one was named."""
        import torch

        return torch.device(self.name)

    @contextlib.contextmanager
    def autocast(self, dtype: torch.dtype, *, enabled: bool = True, cache_enabled: bool = True) -> Iterator[None]:
        """``torch.autocast(type, dtype)``."""
        import torch

        with torch.autocast(self.type, dtype, enabled=enabled, cache_enabled=cache_enabled):
            yield

    @contextlib.contextmanager
    def tensors(self) -> Iterator[None]:
        """Tensors on an accelerator need no scope."""
        yield

    def synchronize(self) -> None:
        """``torch.accelerator.synchronize``, so that errors of earlier kernels surface here."""
        import torch

        torch.accelerator.synchronize(self.torch_device)

    def describe(self) -> str:
        """The device type; torch.accelerator has no name of the card."""
        return self.name

    def provenance(self) -> dict[str, str]:
        """The device's name as the back end tells it."""
        return {"accelerator": self.describe()}


class CudaDevice(AcceleratorDevice):
    """NVIDIA GPU, or an AMD one under ROCm."""

    def __init__(self, index: int | None = None) -> None:
        """Keep the index, which counts the process's visible devices."""
        super().__init__("cuda", index)

    def synchronize(self) -> None:
        """Wait for the GPU: ``torch.cuda.synchronize``."""
        import torch

        torch.cuda.synchronize(self.torch_device)

    def describe(self) -> str:
        """Return the card's name as the driver reports it."""
        import torch

        return torch.cuda.get_device_name(self.torch_device)

    def provenance(self) -> dict[str, str]:
        """Return the card, compute capability, driver, CUDA or ROCm, and cuDNN."""
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
