"""Packages of AOTInductor: how they are linked, and loading one where it can do no harm first."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from pytest_amp.devices import Device
from pytest_amp.failure import AmpFailure
from pytest_amp.isolation import ExaminationFailed, Isolated
from pytest_amp.torch_private import aot_load, compile_settings

#: One of them is what a library in C++ needs, by its name in the library's table of what it is linked to.
_CPP_LIBRARIES = (b"libstdc++.so", b"libc++.so")


def own_cpp_library(package: Path) -> str | None:
    """Why ``package`` is linked wrongly, in one line; None where its libraries share torch's C++ library.

    A linker that takes ``libstdc++.a`` puts a copy of it into the library. What torch hands over meets the other copy:
    ``std::bad_cast``, or a segmentation fault, where it is loaded.
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
    """The function in ``package``, loaded once a process of its own has survived that.

    Raises AmpFailure where that process dies or raises, and PrivateApiGone without AOTInductor.
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
    """For the process of its own: load ``request["package"]``."""
    with compile_settings():  # loading asks for the vectors of the CPU, by compiling
        aot_load(request["package"])
    return True
