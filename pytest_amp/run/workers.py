"""Processes under pytest-xdist: the role of this one, and its GPU.

A worker gets a GPU of its own only if ``cuda`` was requested by name: CUDA_VISIBLE_DEVICES must be set before torch is
imported, and so before a probe can detect a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

VISIBLE = "CUDA_VISIBLE_DEVICES"
#: Environment variable with all GPUs of the caller, for a worker that is restricted to one.
CALLERS = "PYTEST_AMP_VISIBLE_DEVICES"


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process runs tests for a controller."""
    return hasattr(config, "workerinput")


def is_controller(config: pytest.Config) -> bool:
    """Return whether tests run in other processes."""
    return not is_worker(config) and bool(config.getoption("tx", None)) and config.getoption("dist", "no") != "no"


def worker_count(config: pytest.Config) -> int:
    """Return the number of processes that run tests: 1 without pytest-xdist."""
    if is_worker(config):
        return int(config.workerinput["workercount"])  # type: ignore[attr-defined]  # set by pytest-xdist
    if not is_controller(config):
        return 1
    # "3*popen" is three workers.
    return sum(int(spec.split("*")[0]) if spec.split("*")[0].isdigit() else 1 for spec in config.getoption("tx"))


def visible_gpus(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> tuple[str, ...]:
    """Return the caller's GPUs, as CUDA_VISIBLE_DEVICES names them, without torch and without a CUDA context.

    Without the variable they are counted in the driver's files under ``root``: NVIDIA's, or AMD's (kfd lists the
    processors that have a gpu_id).
    """
    listed = environment.get(VISIBLE)
    if listed is not None:
        names = [name.strip() for name in listed.split(",")]
        # CUDA ignores everything from the first invalid entry on; "-1" is the usual way to hide all.
        return tuple(names[: next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))])
    nvidia = len(list(root.glob("proc/driver/nvidia/gpus/*"))) or len(list(root.glob("dev/nvidia[0-9]*")))
    amd = sum(_is_gpu(path) for path in root.glob("sys/class/kfd/kfd/topology/nodes/*/gpu_id"))
    return tuple(str(index) for index in range(nvidia or amd))


def _is_gpu(gpu_id: Path) -> bool:
    """Return whether a processor that kfd lists is a GPU that this container may use: its file is readable."""
    try:
        return gpu_id.read_text(encoding="ascii").strip() not in ("", "0")
    except OSError:
        return False


def callers_gpus() -> dict[str, str]:
    """Return the environment of a child process that may use all GPUs of the caller."""
    return {VISIBLE: os.environ[CALLERS]} if CALLERS in os.environ else {}


def count_devices(device_type: str) -> int:
    """Return the number of accelerators of a type in the run: for a worker with one GPU, those of its caller."""
    if device_type == "cuda":
        return len(visible_gpus({**os.environ, **callers_gpus()}))
    import torch

    return torch.accelerator.device_count()


def gpu_of_worker(number: int, visible: Sequence[str]) -> str:
    """Return the entry of the caller's list for worker ``number``; a plain index would not match that list."""
    return visible[number % len(visible)]


def asks_for_cuda(devices: Sequence[str]) -> bool:
    """Return whether a real CUDA device was requested by name."""
    return any(name.partition(":")[0] == "cuda" for name in devices)


def device_modules(config: pytest.Config) -> list[str]:
    """Return the modules that register device types, by their importable names."""
    names = [
        getattr(plugin, "__name__", "")
        for plugin in config.pluginmanager.get_plugins()
        if hasattr(plugin, "pytest_amp_devices") and not hasattr(plugin, "pytest_addhooks")
    ]
    return [name for name in names if name and name != "pytest_amp.hookspecs"]
