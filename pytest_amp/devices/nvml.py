"""Facts from NVIDIA's driver about a GPU: its version, reasons of reduced clocks, the number of processes on it.

They come from the driver's own library, without a package in between; without it, nothing is known.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

#: Reasons that make a timing worthless (nvml.h, nvmlClocksThrottleReason*): heat, and a lack of power. A power cap set
#: by software is not among them: large products reach it on healthy cards, in every run.
THROTTLED = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


@functools.cache
def _library() -> Any:
    """Return the initialised library; None if it is missing or does not start."""
    try:
        library: Any = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def driver_version() -> str | None:
    """Return the driver's version as ``nvidia-smi`` shows it; None without a driver."""
    library = _library()
    if library is None:
        return None
    text = ctypes.create_string_buffer(96)
    return text.value.decode() if library.nvmlSystemGetDriverVersion(text, ctypes.c_uint(96)) == 0 else None


@functools.cache
def _handle(uuid: str) -> Any:
    library, handle = _library(), ctypes.c_void_p()
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    if library is None or library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)) != 0:
        return None
    return handle


def _reasons(uuid: str) -> int:
    handle, bits = _handle(uuid), ctypes.c_ulonglong()
    if handle is None:
        return 0
    status = _library().nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(bits))
    return bits.value if status == 0 else 0


def throttled(uuid: str) -> tuple[str, ...]:
    """Return the known reasons why the GPU's clocks are reduced now."""
    bits = _reasons(uuid)
    return tuple(reason for bit, reason in THROTTLED.items() if bits & bit)


class _Process(ctypes.Structure):
    """Structure ``nvmlProcessInfo_t`` of nvml.h."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


#: Room for the processes on one GPU; NVML returns an error if there are more.
MOST_PROCESSES = 256


def processes(uuid: str) -> tuple[int, ...] | None:
    """Return the ids of the processes that have a context on the GPU; None if the driver does not report them.

    In a container the driver may not see processes outside, or may report ids of another namespace than this system's.
    """
    handle, count = _handle(uuid), ctypes.c_uint(MOST_PROCESSES)
    query = getattr(_library(), "nvmlDeviceGetComputeRunningProcesses_v3", None)
    if handle is None or query is None:
        return None
    entries = (_Process * MOST_PROCESSES)()
    return (
        tuple(entries[i].pid for i in range(count.value)) if query(handle, ctypes.byref(count), entries) == 0 else None
    )
