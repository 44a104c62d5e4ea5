"""What NVIDIA's driver tells of a GPU: its version, why clocks are held down, how many processes compute on it.

By the driver's own library, with no package in between; where there is none, nothing is known.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any

#: Reasons that make a timing worthless (nvml.h, nvmlClocksThrottleReason*): heat, and power that runs short. Not a
#: power cap set by software: large products reach it on healthy cards, all along and in every run.
THROTTLED = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


@functools.cache
def _library() -> Any:
    """The library, initialised; None where there is none, or where it does not start."""
    try:
        library: Any = ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def driver_version() -> str | None:
    """As ``nvidia-smi`` shows it."""
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
    """Why the GPU's clocks are held down now, as far as that is known."""
    bits = _reasons(uuid)
    return tuple(reason for bit, reason in THROTTLED.items() if bits & bit)


class _Process(ctypes.Structure):
    """``nvmlProcessInfo_t`` of nvml.h."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


#: Room for the processes on one GPU, and what NVML answers where there are more.
MOST_PROCESSES = 256


def processes(uuid: str) -> tuple[int, ...] | None:
    """The numbers of the processes that have a context on the GPU; None where the driver does not tell.

    In a container it may not see those outside, or know all by other numbers than the system here does.
    """
    handle, count = _handle(uuid), ctypes.c_uint(MOST_PROCESSES)
    query = getattr(_library(), "nvmlDeviceGetComputeRunningProcesses_v3", None)
    if handle is None or query is None:
        return None
    found = (_Process * MOST_PROCESSES)()
    return tuple(found[i].pid for i in range(count.value)) if query(handle, ctypes.byref(count), found) == 0 else None
