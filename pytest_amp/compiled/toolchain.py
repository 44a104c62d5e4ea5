"""The tools that inductor needs besides torch: a C++ compiler on a CPU, Triton and a C compiler on a GPU."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil

import torch

from pytest_amp import torch_private
from pytest_amp.devices import Device
from pytest_amp.text.quoted import quoted_with_type

#: The device types for which inductor writes Triton kernels.
_TRITON = frozenset({"cuda", "xpu"})


def lacking(device: Device) -> str | None:
    """Return the tool that inductor lacks to compile for ``device``, in one line; None if it compiles.

    The test compiles a small function, once in a process, in the caller's sandbox. Raises PrivateApiGone if inductor's
    lookup of its compiler is missing.
    """
    return _lacking(device.type, str(device.torch_device), os.environ.get("CXX"), os.environ.get("CC"))


@functools.cache
def _lacking(device_type: str, device: str, cxx: str | None, cc: str | None) -> str | None:
    missing = _named(device_type, cxx, cc)
    if missing is not None:
        return missing
    error = _tried(device)
    if error is not None and device_type == "cpu":
        with torch_private.vectors_are_tried():  # an old compiler does not support the vector instructions of a new CPU
            error = _tried(device)
    if error is None:
        return None
    return f"inductor cannot compile for {device_type}: {quoted_with_type(error, 300)}"


def _tried(device: str) -> Exception | None:
    """Compile a small function, and return the error of the compiler, linker or loader; None if it works."""
    try:
        torch.compile(_function, backend="inductor")(torch.ones(16, device=device))
    except Exception as error:  # noqa: BLE001
        return error
    finally:
        torch.compiler.reset()
    return None


def _function(x: torch.Tensor) -> torch.Tensor:
    """Compute one vector of sixteen elements; exp, which inductor uses to test vectors, needs to be linked."""
    return torch.exp(x * 2 + 1)


def _named(device_type: str, cxx: str | None, cc: str | None) -> str | None:
    """Return the message for a missing tool; None if all are installed."""
    if device_type == "cpu" and torch_private.cpp_compiler() is None:
        return f"inductor has no C++ compiler: {cxx or 'g++'} does not run (the variable CXX names another)"
    if device_type not in _TRITON:
        return None
    if importlib.util.find_spec("triton") is None:
        return f"inductor has no Triton for {device_type}: the package triton is not installed"
    if shutil.which(cc) is None if cc else not any(shutil.which(name) for name in ("gcc", "clang")):
        return f"Triton has no C compiler: {cc or 'neither gcc nor clang'} is there (the variable CC names another)"
    return None
