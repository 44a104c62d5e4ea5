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
POWER_CAP = 0x04


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


def power_capped(uuid: str) -> bool:
    """Whether a power limit holds the clocks down now."""
    return bool(_reasons(uuid) & POWER_CAP)


def processes(uuid: str) -> int | None:
    """How many processes compute on the GPU, this one included; None where the driver does not tell.

    In a container it may not see those outside.
    """
    handle, count = _handle(uuid), ctypes.c_uint(0)
    if handle is None:
        return None
    query = getattr(_library(), "nvmlDeviceGetComputeRunningProcesses_v3", None)
    if query is None:
        return None
    # Without room for an answer it says how many there are: NVML_ERROR_INSUFFICIENT_SIZE is 7.
    status = query(handle, ctypes.byref(count), None)
    return int(count.value) if status in (0, 7) else None
