"""Probe: a device is available if it computes, independent of the build."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pytest_amp.devices import FAKE_TYPES, find_device
from pytest_amp.devices import probe as probing
from pytest_amp.devices.accelerator import AcceleratorDevice, CudaDevice
from pytest_amp.devices.cpu import CpuDevice
from pytest_amp.devices.fake import FakeDevice
from pytest_amp.precision import BF16, FP16


class OnCpu(AcceleratorDevice):
    """Accelerator that is the CPU; each subclass breaks one part."""

    def __init__(self) -> None:
        super().__init__("broken")

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    @contextlib.contextmanager
    def autocast(self, dtype: torch.dtype, *, enabled: bool = True, cache_enabled: bool = True) -> Iterator[None]:
        with torch.autocast("cpu", dtype, enabled=enabled, cache_enabled=cache_enabled):
            yield

    def synchronize(self) -> None:
        pass


class NoAutocast(OnCpu):
    @contextlib.contextmanager
    def autocast(self, dtype: torch.dtype, *, enabled: bool = True, cache_enabled: bool = True) -> Iterator[None]:  # noqa: ARG002
        yield


class LateError(OnCpu):
    def synchronize(self) -> None:
        raise RuntimeError("an illegal\nmemory access " + "x" * 300)


class NoMemory(OnCpu):
    @property
    def torch_device(self) -> torch.device:
        raise MemoryError("none left")


class WrongValues(OnCpu):
    @contextlib.contextmanager
    def autocast(self, dtype: torch.dtype, *, enabled: bool = True, cache_enabled: bool = True) -> Iterator[None]:  # noqa: ARG002
        right = torch.Tensor.__matmul__
        torch.Tensor.__matmul__ = lambda a, b: (right(a, b) * 2).to(dtype)  # type: ignore[method-assign]
        try:
            yield
        finally:
            torch.Tensor.__matmul__ = right  # type: ignore[method-assign]


def test_probe_of_the_cpu_computes_in_both_dtypes() -> None:
    actual = probing.probe(CpuDevice())
    assert (actual.works, dict(actual.answers)) == ((BF16, FP16), {"bf16": "", "fp16": ""})
    assert probing.probe(OnCpu()).works == (BF16, FP16)


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (NoAutocast(), "a matmul under autocast returned torch.float32"),
        (LateError(), "RuntimeError: an illegal memory access xxx"),
        (NoMemory(), "MemoryError: none left"),
        (WrongValues(), "a matmul under autocast returned wrong values"),
    ],
)
def test_probe_of_a_broken_device_returns_the_reason(device: OnCpu, reason: str) -> None:
    actual = probing.probe(device)
    assert actual.works == ()
    assert actual.reason.startswith(reason)
    assert len(actual.reason) <= 200
    assert len(actual.reason.splitlines()) == 1


@pytest.mark.parametrize("device_type", FAKE_TYPES)
def test_probe_of_a_fake_device_needs_no_hardware(device_type: str) -> None:
    actual = probing.probe(FakeDevice(device_type))
    missing = [name for name, reason in actual.answers.items() if "unknown device type for autocast" in reason]
    assert actual.works == (BF16, FP16) or (device_type, missing) == ("mtia", ["bf16", "fp16"])  # torch 2.6


def test_fake_region_restores_autocast_state() -> None:
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"), torch.is_autocast_cache_enabled()
    device = FakeDevice("cuda")
    with device.autocast(torch.bfloat16), device.autocast(torch.float16, enabled=False, cache_enabled=False):
        assert (torch.is_autocast_enabled("cuda"), torch.is_autocast_cache_enabled()) == (False, False)
    with contextlib.suppress(ZeroDivisionError), device.autocast(torch.bfloat16):
        assert (torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")) == (True, torch.bfloat16)
        raise ZeroDivisionError
    after = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"), torch.is_autocast_cache_enabled()
    assert after == before
    assert torch.autocast_increment_nesting() == 1
    torch.autocast_decrement_nesting()


def test_fake_tensors_do_not_require_grad() -> None:
    """Disable gradients, since a fake tensor with one aborts the process on a CPU-only build."""
    device = FakeDevice("cuda")
    with device.tensors():
        assert not torch.is_grad_enabled()
        x = torch.empty(2, 2, device=device.torch_device)
        assert (x.device.type, x.requires_grad) == ("cuda", False)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("name", "kind", "key", "index"),
    [
        ("cpu", CpuDevice, "cpu", None),
        ("cuda", CudaDevice, "cuda", None),
        ("cuda:3", CudaDevice, "cuda", 3),
        ("xpu:0", AcceleratorDevice, "xpu", 0),
        ("fake:mps", FakeDevice, "fake-mps", None),
    ],
)
def test_find_device_parses_names(name: str, kind: type, key: str, index: int | None) -> None:
    device = find_device(name)
    assert type(device) is kind
    assert (device.name, device.key, getattr(device, "index", None)) == (name, key, index)


def test_probe_in_a_child_returns_each_device() -> None:
    actual = probing.probe_in_child(["cpu", "fake:cuda"])
    assert [answer.works for answer in actual.values()] == [(BF16, FP16), (BF16, FP16)]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import sys; sys.exit('no driver')", "the probe ended with 1: no driver"),
        ("import os; os.kill(os.getpid(), 11)", "the probe ended with -11: "),
        ("print('hello')", "the probe gave no answer"),
        ("pass", "the probe gave no answer"),
        ("print(7)", "the probe gave no answer"),
        ("print('{}')", "the probe gave no answer"),
        ("import time; time.sleep(60)", "the probe did not answer within 2 s"),
    ],
)
def test_probe_in_a_child_that_dies_or_hangs_returns_the_reason(
    monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    run = subprocess.run

    def other(_command: list[str], **keywords: Any) -> Any:
        return run([sys.executable, "-S", "-c", code], **keywords)

    monkeypatch.setattr(subprocess, "run", other)
    monkeypatch.setattr(probing, "TIMEOUT", 2.0)
    actual = probing.probe_in_child(["cuda", "xpu"])
    assert [(answer.device, answer.works, answer.reason) for answer in actual.values()] == [
        ("cuda", (), reason),
        ("xpu", (), reason),
    ]


def test_fake_tensors_do_not_initialize_an_absent_device() -> None:
    """Up to torch 2.12, a machine with an NVIDIA GPU initialized XPU for a fake XPU tensor, and failed."""
    there = {"cuda": torch.cuda.is_available(), "xpu": torch.xpu.is_available()}
    script = (
        "import torch\n"
        "from torch._subclasses import fake_tensor\n"
        "woken = []\n"
        "fake_tensor.init_gpu_context = lambda *given: woken.extend(device.type for device in given)\n"
        "from pytest_amp.devices import FAKE_TYPES, find_device\n"
        "for name in FAKE_TYPES:\n"
        "    with find_device(f'fake:{name}').tensors():\n"
        "        assert torch.ones(2, device=name).device.type == name\n"
        "print(sorted(set(woken)))\n"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert child.stdout.strip() == str(sorted(name for name, is_there in there.items() if is_there)), child.stderr
