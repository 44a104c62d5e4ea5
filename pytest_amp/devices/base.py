"""Interface of a device that checks run on."""

from __future__ import annotations

import enum
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class DeviceKind(enum.Enum):
    """Kind of a device: what exists behind its name, which decides the families of checks that apply to it."""

    CPU = "cpu"
    ACCELERATOR = "accelerator"
    FAKE = "fake"


class Device(Protocol):
    """One device: a CPU, an accelerator, or a fake one that has rules but no hardware."""

    @property
    def name(self) -> str:
        """As the user names it: ``cpu``, ``cuda``, ``cuda:1``, ``fake:cuda``."""

    @property
    def type(self) -> str:
        """The device type that torch knows: ``cuda`` for ``cuda:1`` and for ``fake:cuda``."""

    @property
    def key(self) -> str:
        """The part of test ids and observation keys: the type, or ``fake-cuda``; never an index."""

    @property
    def kind(self) -> DeviceKind:
        """CPU, accelerator or fake."""

    @property
    def torch_device(self) -> torch.device:
        """What ``device=`` takes."""

    def autocast(
        self, dtype: torch.dtype, *, enabled: bool = True, cache_enabled: bool = True
    ) -> AbstractContextManager[None]:
        """An autocast region on this device; on a fake device one that needs no hardware."""

    def tensors(self) -> AbstractContextManager[None]:
        """The scope in which tensors on this device can be made; a fake device stays in no_grad."""

    def synchronize(self) -> None:
        """Wait for the device; raises what an earlier kernel left behind."""

    def describe(self) -> str:
        """The hardware in a few words, for the header and for failures."""

    def provenance(self) -> dict[str, str]:
        """What values measured here may depend on: hardware, driver, library versions."""
