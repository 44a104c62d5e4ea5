"""Kernels that NVIDIA's driver compiles: the text is PTX, and no library of CUDA or torch takes part."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any


class DriverError(RuntimeError):
    """Error of the driver, or no driver; the message is one line."""


@functools.cache
def _driver() -> Any:
    """Return the driver's library. Raises DriverError without one."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        library: Any = ctypes.CDLL(name)
    except OSError as error:
        raise DriverError(f"{name} cannot be loaded: {error}") from None
    return library


def _call(function: str, *arguments: object) -> None:
    """Call a function of the driver. Raises DriverError with its name and the driver's words."""
    driver = _driver()
    status = getattr(driver, function)(*arguments)
    if status != 0:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(ctypes.c_int(status), ctypes.byref(text))
        raise DriverError(f"{function}: {(text.value or b'unknown error').decode(errors='replace')} ({status})")


class Kernels:
    """Kernels of one PTX text, in the context of the current device. They stay loaded until the process ends."""

    def __init__(self, ptx: bytes) -> None:
        """Compile ``ptx`` for the current device, which torch has initialized in this thread.

        Raises DriverError, also for a card that is older than the text's target.
        """
        context = ctypes.c_void_p()
        _call("cuCtxGetCurrent", ctypes.byref(context))
        if not context.value:
            raise DriverError("this thread has no CUDA context")
        self._module = ctypes.c_void_p()
        self._text = ctypes.create_string_buffer(ptx)
        _call("cuModuleLoadData", ctypes.byref(self._module), self._text)
        self._functions: dict[str, ctypes.c_void_p] = {}

    def launch(self, name: str, *arguments: Any, stream: int, grid: int = 1, block: int = 1) -> None:
        """Launch a kernel on a stream; ``arguments`` are ctypes values in the kernel's order. Raises DriverError."""
        if name not in self._functions:
            function = ctypes.c_void_p()
            _call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
            self._functions[name] = function
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        sizes = [ctypes.c_uint(size) for size in (grid, 1, 1, block, 1, 1, 0)]
        _call("cuLaunchKernel", self._functions[name], *sizes, ctypes.c_void_p(stream), pointers, None)
