"""Trajectories that several tests use: each is computed once in a process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.training import Band, Setup, Task, Trajectory, band_of, characters, images, run

TASKS: dict[str, Callable[[], Task]] = {"characters": characters, "images": images}

_runs: dict[tuple[object, ...], Trajectory] = {}
_bands: dict[tuple[object, ...], Band] = {}


@dataclass(frozen=True)
class Trained:
    """Training of a task on a device in a dtype, from a seed on."""

    amp: SuiteAmp
    name: str
    seed: int

    @property
    def task(self) -> Task:
        """Return the task."""
        return TASKS[self.name]()

    @property
    def setup(self) -> Setup:
        """Return the setup: fresh batches, torch's usual step, the task's optimizer."""
        task = self.task
        return Setup(
            task.case, self.amp.device, self.amp.precision, steps=task.steps, seed=self.seed,
            make_optimizer=task.optimizer, fresh=True,
        )  # fmt: skip

    def run(self, *, low: bool) -> Trajectory:
        """Run in mixed precision, or in float32 (which both dtypes share)."""
        key = (self.name, self.amp.device.key, self.seed, self.amp.precision.name if low else "fp32")
        if key not in _runs:
            _runs[key] = run(self.setup, low=low)
        return _runs[key]

    def model(self, *, low: bool) -> torch.nn.Module:
        """Return a copy of the trained model, in training mode."""
        return copy.deepcopy(self.run(low=low).model)

    @property
    def band(self) -> Band:
        """Return the band around the float32 run."""
        key = (self.name, self.amp.device.key, self.seed, self.amp.precision.name, self.amp.config.tolerance_scale)
        if key not in _bands:
            _bands[key] = band_of(self.setup, self.run(low=False), scale=self.amp.config.tolerance_scale)
        return _bands[key]

    def evaluation(self) -> dict[str, torch.Tensor]:
        """Return data for the accuracy, the same for each run."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + 31)
            return {name: value.to(self.amp.device.torch_device) for name, value in self.task.evaluation().items()}


def trained(amp: SuiteAmp, name: str, *, seed: int = 0) -> Trained:
    """Return the task ``name`` from the run's seed plus ``seed`` on."""
    return Trained(amp, name, amp.config.seed + seed)


def snapshot(tree: Any) -> Any:
    """Return a copy of a state dict that later steps leave unchanged."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return {key: snapshot(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(snapshot(value) for value in tree)
    return tree


def same(left: Any, right: Any) -> bool:
    """Return whether two state dicts are equal, dtypes and bits included; NaN is equal to nothing."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return isinstance(right, dict) and left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)
