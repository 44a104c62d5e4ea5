"""Role of this process under pytest-xdist, controller or worker, and the GPU of a worker; ``run.controller`` sets it.

If ``cuda`` is requested by name, each worker is restricted to one GPU. Otherwise a worker sees all GPUs: the variable
CUDA_VISIBLE_DEVICES must be set before the worker imports torch, when no probe has detected a GPU yet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

VISIBLE = "CUDA_VISIBLE_DEVICES"
#: Environment variable that lists all GPUs of the run, for a worker whose CUDA_VISIBLE_DEVICES lists only one.
CALLERS = "PYTEST_AMP_VISIBLE_DEVICES"


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def is_controller(config: pytest.Config) -> bool:
    """Return whether this process is the controller of pytest-xdist, which runs no tests itself."""
    return not is_worker(config) and bool(config.getoption("tx", None)) and config.getoption("dist", "no") != "no"


def worker_count(config: pytest.Config) -> int:
    """Return the number of processes that run tests: 1 without pytest-xdist."""
    if is_worker(config):
        return int(config.workerinput["workercount"])  # type: ignore[attr-defined]  # set by pytest-xdist
    if not is_controller(config):
        return 1
    # A value of --tx, such as "3*popen", may start several workers.
    return sum(int(spec.split("*")[0]) if spec.split("*")[0].isdigit() else 1 for spec in config.getoption("tx"))


def visible_gpus(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> tuple[str, ...]:
    """Return the visible GPUs, named as in CUDA_VISIBLE_DEVICES, without importing torch or creating a CUDA context.

    If the variable is not set, GPUs are counted in the files that the NVIDIA driver or AMD's kfd driver has created
    below ``root``, and the result is their indices.
    """
    listed = environment.get(VISIBLE)
    if listed is not None:
        names = [name.strip() for name in listed.split(",")]
        # CUDA ignores the first invalid entry and all entries after it; "-1" is the usual entry to hide all GPUs.
        return tuple(names[: next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))])
    nvidia = len(list(root.glob("proc/driver/nvidia/gpus/*"))) or len(list(root.glob("dev/nvidia[0-9]*")))
    amd = sum(_is_gpu(path) for path in root.glob("sys/class/kfd/kfd/topology/nodes/*/gpu_id"))
    return tuple(str(index) for index in range(nvidia or amd))


def _is_gpu(gpu_id: Path) -> bool:
    """Return whether a node of the kfd topology is a GPU that this container may use.

    The ``gpu_id`` of a CPU is 0; that of a GPU which is not assigned to the container is not readable.
    """
    try:
        return gpu_id.read_text(encoding="ascii").strip() not in ("", "0")
    except OSError:
        return False


def callers_gpus() -> dict[str, str]:
    """Return the environment variables that make all GPUs of the run visible to a child process of a worker.

    The result is empty if this process is not restricted to one GPU.
    """
    return {VISIBLE: os.environ[CALLERS]} if CALLERS in os.environ else {}


def count_devices(device_type: str) -> int:
    """Return the number of accelerators of a type in the run, including those that are hidden from this worker."""
    if device_type == "cuda":
        return len(visible_gpus({**os.environ, **callers_gpus()}))
    import torch

    return torch.accelerator.device_count()


def gpu_of_worker(number: int, visible: Sequence[str]) -> str:
    """Return the GPU of worker ``number``: one of ``visible``, which worker numbers select in turn.

    The worker number itself is no GPU index, since CUDA_VISIBLE_DEVICES may list any GPUs, such as ``2,5,7``.
    """
    return visible[number % len(visible)]


def asks_for_cuda(devices: Sequence[str]) -> bool:
    """Return whether a CUDA device was requested by name; ``fake:cuda`` is none."""
    return any(name.partition(":")[0] == "cuda" for name in devices)


def device_modules(config: pytest.Config) -> list[str]:
    """Return the importable names of the plugin modules that register device types."""
    names = [
        getattr(plugin, "__name__", "")
        for plugin in config.pluginmanager.get_plugins()
        if hasattr(plugin, "pytest_amp_devices") and not hasattr(plugin, "pytest_addhooks")
    ]
    return [name for name in names if name and name != "pytest_amp.hookspecs"]
