"""Peak memory of an accelerator's allocator over a step, and memory that is held after each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pytest_amp.devices import Device, DeviceKind
from pytest_amp.memory.passes import Passes
from pytest_amp.numerics.step import Region
from pytest_amp.torch_private import live_storages


@dataclass(frozen=True)
class Peak:
    """Peak allocated and reserved memory of a step, in bytes, above the values before it."""

    allocated: int
    reserved: int


class Allocator:
    """The statistics of a device's caching allocator."""

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
        """Release reserved memory that is not used, and reset the peaks."""
        self._device.synchronize()
        self._of.empty_cache()
        self._of.reset_peak_memory_stats(self._index)

    @property
    def allocated(self) -> int:
        """Bytes that tensors hold now."""
        self._device.synchronize()
        return int(self._of.memory_allocated(self._index))

    @property
    def reserved(self) -> int:
        """Bytes that the allocator holds now."""
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

    One step runs before: libraries allocate their workspaces at first use.
    """
    allocator = Allocator(passes.where.device)
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


def growth(passes: Passes, region: Region, *, steps: int) -> tuple[int, ...]:
    """Measure the bytes held after each step, of the memory that the steps allocated, beginning with the second.

    The first step allocates what is allocated once, such as gradients. Raises PrivateApiGone without torch's dispatch
    modes.
    """
    held_after = []
    with live_storages() as alive:
        for _ in range(steps):
            passes.backward(passes.forward(region))
            held_after.append(sum(alive()))
    passes.forget_gradients()
    return tuple(held_after[1:])
