"""CPU device."""

from __future__ import annotations

import contextlib
import functools
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_amp.devices.base import DeviceKind

if TYPE_CHECKING:
    import torch


class CpuDevice:
    """CPU, which every machine has."""

    name = type = key = "cpu"
    kind = DeviceKind.CPU

    @property
    def torch_device(self) -> torch.device:
        """Device ``torch.device("cpu")``."""
        import torch

        return torch.device("cpu")

    @contextlib.contextmanager
    def autocast(self, dtype: torch.dtype, *, enabled: bool = True, cache_enabled: bool = True) -> Iterator[None]:
        """Enter ``torch.autocast("cpu", dtype)``."""
        import torch

        with torch.autocast("cpu", dtype, enabled=enabled, cache_enabled=cache_enabled):
            yield

    @contextlib.contextmanager
    def tensors(self) -> Iterator[None]:
        """Yield at once: tensors on the CPU need no scope."""
        yield

    def synchronize(self) -> None:
        """Do nothing: the CPU has no queue to wait for."""

    def describe(self) -> str:
        """Return the architecture and the vector extension of torch's kernels."""
        import torch

        return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"

    def provenance(self) -> dict[str, str]:
        """Return the facts that CPU results depend on.

        Their bits depend on the vector extension, and on the dtypes for which oneDNN has kernels.
        """
        import torch

        from pytest_amp import torch_private

        low = [name for name in ("bf16", "fp16") if torch_private.cpu_has_onednn_kernels(name)]
        return {
            "machine": platform.machine(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "mkldnn": str(torch.backends.mkldnn.is_available()),  # type: ignore[no-untyped-call,unused-ignore]
            "onednn": ", ".join(low) or "neither bf16 nor fp16",
        }


@functools.cache
def cpu_name() -> str:
    """Return the name of the host's CPU, such as ``AMD EPYC 9654 96-Core Processor``; else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, names), "") or platform.processor() or platform.machine()
