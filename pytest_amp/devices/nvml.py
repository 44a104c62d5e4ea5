"""Facts from NVIDIA's driver about a GPU: its version, reasons of reduced clocks, the processes on it.

``pynvml`` (nvidia-ml-py, the extra ``gpu``) asks the driver's library, NVML. Without it, or without a driver, nothing
is known, and ``lacking`` says why.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from typing import Any

#: Reasons that make a timing worthless (nvml.h, nvmlClocksEventReason*): heat, and a lack of power. A power cap set
#: by software is not among them: large products reach it on healthy cards, in every run.
THROTTLED = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
#: The function that returns these reasons, under its name since driver 535 and under its earlier one.
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")


@functools.cache
def _library() -> tuple[Any, str | None]:
    """Return ``pynvml``, initialised, and None; or None and the reason why there is none."""
    try:
        library: Any = importlib.import_module("pynvml")
    except ImportError:
        return None, "nvidia-ml-py is not installed"
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        return None, f"NVML does not start: {error}"
    return library, None


def lacking() -> str | None:
    """Return why nothing is known of the driver; None if it can be asked."""
    return _library()[1]


def driver_version() -> str | None:
    """Return the driver's version as ``nvidia-smi`` shows it; None if it is not known."""
    library, _ = _library()
    if library is None:
        return None
    try:
        return str(library.nvmlSystemGetDriverVersion())
    except library.NVMLError:
        return None


@functools.cache
def _handle(uuid: str) -> Any:
    library, _ = _library()
    if library is None:
        return None
    try:
        return library.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")
    except library.NVMLError:
        return None


def throttled(uuid: str) -> tuple[str, ...]:
    """Return the known reasons why the GPU's clocks are reduced now."""
    library, handle = _library()[0], _handle(uuid)
    if handle is None:
        return ()
    for name in _REASONS:
        with contextlib.suppress(library.NVMLError, AttributeError):
            bits = int(getattr(library, name)(handle))
            return tuple(reason for bit, reason in THROTTLED.items() if bits & bit)
    return ()


def lost() -> tuple[str, ...]:
    """Return the driver's error for each GPU of this machine that it cannot reach, such as ``GPU is lost``."""
    library, _ = _library()
    if library is None:
        return ()

    def error_of(index: int) -> str | None:
        try:
            library.nvmlDeviceGetUUID(library.nvmlDeviceGetHandleByIndex(index))
        except library.NVMLError as error:
            return f"GPU {index}: {error}"
        return None

    try:
        count = int(library.nvmlDeviceGetCount())
    except library.NVMLError as error:
        return (str(error),)
    return tuple(filter(None, map(error_of, range(count))))


def processes(uuid: str) -> tuple[int, ...] | None:
    """Return the ids of the processes that have a context on the GPU; None if the driver does not report them.

    In a container the driver may not see processes outside, or may report ids of another namespace than this system's.
    """
    library, handle = _library()[0], _handle(uuid)
    if handle is None:
        return None
    try:
        return tuple(int(process.pid) for process in library.nvmlDeviceGetComputeRunningProcesses(handle))
    except library.NVMLError:
        return None
