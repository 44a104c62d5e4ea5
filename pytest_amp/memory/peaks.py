"""Measure an accelerator's peak memory during a step, and the memory that stays allocated after each step."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any

import torch

from pytest_amp.devices import Device, DeviceKind
from pytest_amp.memory.passes import Passes
from pytest_amp.numerics.step import Region
from pytest_amp.torch_private import call_overload, each_call, live_storages


@dataclass(frozen=True)
class Peak:
    """Peak allocated and reserved memory of a step, in bytes, relative to the values before the step."""

    allocated: int
    reserved: int


class Allocator:
    """Memory statistics of a device's caching allocator."""

    def __init__(self, device: Device) -> None:
        """Use ``torch.accelerator``'s statistics (torch 2.9 and later), or those of the device's module."""
        generic: Any = getattr(torch, "accelerator", None)
        self._of: Any = generic if hasattr(generic, "max_memory_allocated") else getattr(torch, device.type, None)
        self._device = device

    @property
    def counts(self) -> bool:
        """Return whether the device has these statistics: a CPU has none."""
        return self._device.kind is DeviceKind.ACCELERATOR and hasattr(self._of, "max_memory_allocated")

    def empty(self) -> None:
        """Empty the allocator's cache, and reset the peak statistics."""
        self._device.synchronize()
        self._of.empty_cache()
        self._of.reset_peak_memory_stats(self._index)

    @property
    def allocated(self) -> int:
        """Bytes that tensors occupy now."""
        self._device.synchronize()
        return int(self._of.memory_allocated(self._index))

    @property
    def reserved(self) -> int:
        """Bytes that the allocator has reserved now."""
        return int(self._of.memory_reserved(self._index))

    @property
    def peaks(self) -> tuple[int, int]:
        """Peak allocated and reserved memory since ``empty``, in bytes."""
        self._device.synchronize()
        return int(self._of.max_memory_allocated(self._index)), int(self._of.max_memory_reserved(self._index))

    @property
    def _index(self) -> int:
        return torch.empty(0, device=self._device.torch_device).device.index or 0


def peak_of(passes: Passes, region: Region) -> Peak | None:
    """Measure the peak of one step, including gradients; None if the device's allocator has no statistics.

    A warm-up step runs first, since libraries allocate their workspaces at first use.
    """
    allocator = Allocator(passes.conditions.device)
    if not allocator.counts:
        return None
    passes.backward(passes.forward(region))
    passes.forget_gradients()
    allocator.empty()
    allocated, reserved = allocator.allocated, allocator.reserved
    passes.backward(passes.forward(region))
    most_allocated, most_reserved = allocator.peaks
    passes.forget_gradients()
    return Peak(most_allocated - allocated, most_reserved - reserved)


def tensor_peak(passes: Passes, region: Region) -> int:
    """Return the largest number of bytes of tensors that a step allocates and holds at once, counted at each operator.

    Unlike the allocator's peak it excludes the workspaces of libraries and what a kernel allocates for itself. torch
    2.15 allocates cuBLAS's workspace, 32 MiB on an H200, for each call (pytorch/pytorch#194311). Raises PrivateApiGone
    if torch has no dispatch modes.
    """
    most = 0
    with live_storages() as alive:

        def count(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal most
            result = call_overload(overload, args, kwargs)
            most = max(most, sum(alive()))
            return result

        with each_call(count):
            passes.backward(passes.forward(region))
    passes.forget_gradients()
    return most


def growth(passes: Passes, region: Region, *, steps: int, collect: bool = False) -> tuple[int, ...]:
    """Return the bytes still allocated after each step from the second on, counting only memory of these steps.

    The first step is left out, since it makes allocations that happen once: gradients. With ``collect``, tensors
    that only a reference cycle holds are freed after each step. Raises PrivateApiGone if torch has no dispatch modes.
    """
    held_after = []
    with live_storages() as alive:
        for _ in range(steps):
            passes.backward(passes.forward(region))
            if collect:
                gc.collect()
            held_after.append(sum(alive()))
    passes.forget_gradients()
    return tuple(held_after[1:])
