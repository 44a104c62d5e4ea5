"""Facts of NVIDIA's driver from a simulated pynvml, and the reason that is reported without one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_amp.devices import find_device, nvml
from pytest_amp.devices.accelerator import CudaDevice
from pytest_amp.record.cause import likely_cause
from pytest_amp.speed.environment import unread


class NVMLError(Exception):
    """Error of the simulated library."""


class Library(ModuleType):
    """Simulated ``pynvml``: one GPU with a process, whose clocks are reduced by heat."""

    NVMLError = NVMLError
    starts = True
    reasons = 0x40 | 0x04

    def nvmlInit(self) -> None:  # noqa: N802  # NVML's name
        if not self.starts:
            raise NVMLError("Driver Not Loaded")

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.1"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != "GPU-1":
            raise NVMLError("Not Found")
        return "handle"

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:  # noqa: N802
        assert handle == "handle"
        return self.reasons

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:  # noqa: N802
        assert handle == "handle"
        return [SimpleNamespace(pid=7), SimpleNamespace(pid=8)]


def _forget() -> None:
    nvml._library.cache_clear()
    nvml._handle.cache_clear()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    simulated = Library("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", simulated)
    _forget()
    yield simulated
    _forget()


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    _forget()
    yield
    _forget()


@pytest.mark.parametrize("uuid", ["1", "GPU-1"])
@pytest.mark.usefixtures("library")
def test_driver_is_queried(uuid: str) -> None:
    assert nvml.lacking() is None
    assert nvml.driver_version() == "580.1"
    assert nvml.throttled(uuid) == ("hardware thermal slowdown",)
    assert nvml.processes(uuid) == (7, 8)


@pytest.mark.parametrize(
    "name", ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"]
)
def test_throttle_reasons_are_read_under_either_name(
    library: Library, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: str) -> int:
        raise NVMLError(f"Function Not Found: {handle}")

    setattr(library, name, refuse)
    other = "nvmlDeviceGetCurrentClocksThrottleReasons"
    assert nvml.throttled("1") == (() if name == other else ("hardware thermal slowdown",))
    monkeypatch.setattr(library, "nvmlDeviceGetCurrentClocksEventReasons", lambda _: 0x08, raising=False)
    assert nvml.throttled("1") == ("hardware slowdown",)


@pytest.mark.usefixtures("library")
def test_unknown_card_has_no_facts() -> None:
    assert nvml.throttled("2") == ()
    assert nvml.processes("2") is None


def test_driver_that_does_not_start_is_named(library: Library) -> None:
    library.starts = False
    assert nvml.lacking() == "NVML does not start: Driver Not Loaded"
    assert (nvml.driver_version(), nvml.throttled("1"), nvml.processes("1")) == (None, (), None)


@pytest.mark.usefixtures("not_installed")
def test_missing_package_is_named() -> None:
    assert nvml.lacking() == "nvidia-ml-py is not installed"
    assert (nvml.driver_version(), nvml.throttled("1"), nvml.processes("1")) == (None, (), None)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> CudaDevice:
    """Return a device whose card torch knows."""
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a card")
    return CudaDevice()


@pytest.mark.usefixtures("library")
def test_provenance_has_the_drivers_version(card: CudaDevice) -> None:
    assert card.provenance()["driver"] == "580.1"


@pytest.mark.usefixtures("not_installed")
def test_unqueried_driver_has_a_reason(card: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unread(card) == "nvidia-ml-py is not installed"
    assert unread(find_device("cpu")) is None
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert unread(card) is None


@pytest.mark.usefixtures("not_installed")
def test_provenance_names_why_the_driver_is_unknown(card: CudaDevice) -> None:
    provenance = card.provenance()
    assert provenance["driver"] == "unknown (nvidia-ml-py is not installed)"
    old: dict[str, Any] = {"torch": "2.13", "devices": {"cuda": {**provenance, "driver": "570"}}}
    new: dict[str, Any] = {"torch": "2.13", "devices": {"cuda": provenance}}
    assert "driver" not in likely_cause(old, new, "cuda")


def test_lost_gpu_is_named(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def uuid_of(handle: int) -> str:
        if handle == 1:
            raise NVMLError("GPU is lost")
        return f"GPU-{handle}"

    monkeypatch.setattr(library, "nvmlDeviceGetCount", lambda: 3, raising=False)
    monkeypatch.setattr(library, "nvmlDeviceGetHandleByIndex", lambda index: index, raising=False)
    monkeypatch.setattr(library, "nvmlDeviceGetUUID", uuid_of, raising=False)
    assert nvml.lost() == ("GPU 1: GPU is lost",)
