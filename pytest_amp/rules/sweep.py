"""Checks of operators in this process, or in a child process that an operator may crash.

On an accelerator one faulty kernel makes the whole process unusable. Operators are therefore examined in a child
process, which is restarted after a crash: a crash costs one operator, which is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pytest_amp.child_process import ExaminationFailed, Isolated
from pytest_amp.devices import Device, DeviceKind, find_device
from pytest_amp.precision import dtype_name
from pytest_amp.rules import checks

if TYPE_CHECKING:
    import torch

__all__ = ["ChildSweep", "ExaminationFailed", "InProcessSweep", "Sweep", "answer", "open_sweep"]

#: The function that a child calls to examine an operator.
EXAMINER = "pytest_amp.rules.sweep:answer"


class Sweep(Protocol):
    """Protocol of an examination of operators on one device."""

    def examine(self, check: str, overload: str, dtype: torch.dtype) -> dict[str, Any]:
        """Return the result of ``pytest_amp.rules.checks.examine``; raises ExaminationFailed."""

    def close(self) -> None:
        """End the sweep; raises ExaminationFailed if its process does not end with status 0."""


def open_sweep(device: Device, *, modules: Sequence[str] = (), path: Sequence[str] = ()) -> Sweep:
    """Open a sweep on ``device``: in this process, or for an accelerator in a child process.

    The child has ``path`` as its module search path and imports ``modules`` before torch. A device that a hook created
    exists in this process only.
    """
    if device.kind is DeviceKind.ACCELERATOR and type(device) is type(find_device(device.name)):
        return ChildSweep(device.name, modules=modules, path=path)
    return InProcessSweep(device)


class InProcessSweep:
    """Examination of operators in this process."""

    def __init__(self, device: Device) -> None:
        """Use ``device``, a CPU or a fake device."""
        self._device = device

    def examine(self, check: str, overload: str, dtype: torch.dtype) -> dict[str, Any]:
        """Examine an operator in this process."""
        try:
            return checks.examine(check, overload, self._device, dtype)
        except LookupError as error:
            raise ExaminationFailed(f"{overload}: {error}") from None

    def close(self) -> None:
        """Do nothing: there is no process to end."""


class ChildSweep:
    """Examination of operators in a child process, which is replaced if it dies."""

    def __init__(
        self,
        device: str,
        *,
        modules: Sequence[str] = (),
        path: Sequence[str] = (),
        examiner: str = EXAMINER,
        timeout: float = 300.0,
    ) -> None:
        """Use the device with the name ``device``; ``examiner`` is a ``module:function`` in place of ``answer``.

        Examining one operator may take ``timeout`` seconds.
        """
        self._device = device
        self.process = Isolated(examiner, modules=modules, path=path, timeout=timeout)

    def examine(self, check: str, overload: str, dtype: torch.dtype) -> dict[str, Any]:
        """Examine an operator in the child; a child that dies, or whose device no longer answers, is replaced."""
        name = dtype_name(dtype)
        request = {"device": self._device, "check": check, "overload": overload, "dtype": name}
        value: dict[str, Any] = self.process.ask(request, overload)
        return value

    def close(self) -> None:
        """End the child; raises ExaminationFailed if it does not end with status 0."""
        self.process.close()


def answer(request: Mapping[str, str], device: Device) -> dict[str, Any]:
    """Answer a request of ChildSweep in the child."""
    import torch

    return checks.examine(request["check"], request["overload"], device, getattr(torch, request["dtype"]))
