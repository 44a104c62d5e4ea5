"""Packages of AOTInductor: a check of their linking, and a trial load in a separate process."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from pytest_amp.child_process import ExaminationFailed, Isolated
from pytest_amp.devices import Device
from pytest_amp.failure import AmpFailure
from pytest_amp.torch_private import aot_load, compile_settings

#: Names of the C++ library in a shared library's table of needed libraries.
_CPP_LIBRARIES = (b"libstdc++.so", b"libc++.so")


def own_cpp_library(package: Path) -> str | None:
    """Return an error, in one line, for a ``package`` that does not share torch's C++ library; None if it does.

    A linker that uses ``libstdc++.a`` puts a copy of it into the library. Objects that torch passes to that copy cause
    ``std::bad_cast`` or a segmentation fault when the package is loaded.
    """
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            if name.endswith(".so") and not any(library in archive.read(name) for library in _CPP_LIBRARIES):
                return (
                    "the C++ compiler links AOTInductor's libraries with a libstdc++ of their own (libstdc++.a), "
                    "and torch has another: loading them is a crash"
                )
    return None


def loaded(package: Path, device: Device) -> Callable[..., Any]:
    """Load the function in ``package``, after a trial load in a separate process.

    Raises AmpFailure if that process dies or raises, and PrivateApiGone without AOTInductor.
    """
    trial = Isolated(f"{__name__}:examine", path=sys.path)
    try:
        trial.ask({"device": device.name, "package": str(package)}, "an AOTInductor package")
        trial.close()
    except ExaminationFailed as failure:
        raise AmpFailure(
            f"an AOTInductor package cannot be loaded on {device.name}",
            label_before="try",
            before="loaded in a process of its own, which the tests survive",
            now=f"{failure}, on torch {torch.__version__}",
            likely="the library was linked with other libraries than torch's, or is wrong",
        ) from None
    return aot_load(str(package))


def examine(request: Mapping[str, Any], _device: Device) -> bool:
    """Load ``request["package"]`` in the separate process."""
    with compile_settings():  # loading tests the CPU's vector instructions by compiling
        aot_load(request["package"])
    return True
