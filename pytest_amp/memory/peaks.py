"""What an accelerator's allocator hands out over a step, and whether what is held grows from step to step."""

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
    """The most that was allocated and reserved during a step, in bytes, beside what was allocated before it."""

    allocated: int
    reserved: int


class Allocator:
    """The statistics of a device's caching allocator."""

    def __init__(self, device: Device) -> None:
        """``torch.accelerator``'s statistics (torch 2.9 and later), or those of the device's own module."""
        generic: Any = getattr(torch, "accelerator", None)
        self._of: Any = generic if hasattr(generic, "max_memory_allocated") else getattr(torch, device.type, None)
        self._device = device

    @property
    def counts(self) -> bool:
        """Whether there are such statistics: a CPU has none."""
        return self._device.kind is DeviceKind.ACCELERATOR and hasattr(self._of, "max_memory_allocated")

    def empty(self) -> None:
        """Give back what is reserved and not used, and start counting peaks anew."""
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
        """The most that was allocated and reserved since ``empty``."""
        self._device.synchronize()
        return int(self._of.max_memory_allocated(self._index)), int(self._of.max_memory_reserved(self._index))

    @property
    def _index(self) -> int:
        return torch.empty(0, device=self._device.torch_device).device.index or 0


def peak_of(passes: Passes, region: Region) -> Peak | None:
    """The peak of one step, gradients included; None where the device's allocator does not count.

    One step runs before: libraries take their workspaces when they are first used.
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
    """Bytes that are held after each step of what steps have allocated, beginning with the second.

    The first step makes what is made once, gradients among it. Raises PrivateApiGone without torch's dispatch
    modes.
    """
    held_after = []
    with live_storages() as held:
        for _ in range(steps):
            passes.backward(passes.forward(region))
            held_after.append(sum(held()))
    passes.forget_gradients()
    return tuple(held_after[1:])
