"""AOTInductor packages that would crash the process are named first."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from pytest_amp.compiled import loaded, own_cpp_library
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure


def package(path: Path, library: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data/weights.bin", b"no library")
        archive.writestr("model/data/model.wrapper.so", library)
    return path


@pytest.mark.parametrize("shared", [b"libstdc++.so.6", b"libc++.so.1"])
def test_library_that_shares_its_cpp_library_is_accepted(tmp_path: Path, shared: bytes) -> None:
    assert own_cpp_library(package(tmp_path / "model.pt2", b"\x7fELF libtorch.so " + shared)) is None


def test_library_with_its_own_cpp_library_is_reported(tmp_path: Path) -> None:
    reason = own_cpp_library(package(tmp_path / "model.pt2", b"\x7fELF libtorch.so libgcc_s.so.1"))
    assert reason is not None
    assert "libstdc++.a" in reason


def test_package_that_cannot_be_loaded_is_red(tmp_path: Path) -> None:
    with pytest.raises(AmpFailure, match="an AOTInductor package cannot be loaded on cpu"):
        loaded(package(tmp_path / "model.pt2", b"\x7fELF, and no more"), find_device("cpu"))
