"""Sweep over the operators of a device: each one is examined in this process, or in a child process.

A kernel that fails on an accelerator makes the device unusable for its process. The operators of an accelerator are
therefore examined in a child process, which is replaced after a crash: only the operator that crashed, which the error
names, has no result.
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

#: Function that the child process calls for each request, as ``module:function``.
EXAMINER = "pytest_amp.rules.sweep:answer"


class Sweep(Protocol):
    """Interface for examining operators on one device, one call per operator."""

    def examine(self, check: str, overload: str, dtype: torch.dtype) -> dict[str, Any]:
        """Return the result of ``pytest_amp.rules.checks.examine``; raises ExaminationFailed."""

    def close(self) -> None:
        """End the sweep; raises ExaminationFailed if its child process does not exit with status 0."""


def open_sweep(device: Device, *, modules: Sequence[str] = (), path: Sequence[str] = ()) -> Sweep:
    """Return a sweep that examines operators on ``device``: for an accelerator in a child process, else in this one.

    The child uses ``path`` as its module search path, imports ``modules`` before torch, and creates the device from its
    name. An accelerator that cannot be created from its name, because its class is a plugin's, is examined in this
    process.
    """
    if device.kind is DeviceKind.ACCELERATOR and type(device) is type(find_device(device.name)):
        return ChildSweep(device.name, modules=modules, path=path)
    return InProcessSweep(device)


class InProcessSweep:
    """Sweep that examines operators in this process."""

    def __init__(self, device: Device) -> None:
        """Store the ``device``: a CPU, a fake device, or an accelerator of a plugin's class."""
        self._device = device

    def examine(self, check: str, overload: str, dtype: torch.dtype) -> dict[str, Any]:
        """Examine an operator in this process."""
        try:
            return checks.examine(check, overload, self._device, dtype)
        except LookupError as error:
            raise ExaminationFailed(f"{overload}: {error}") from None

    def close(self) -> None:
        """Do nothing: there is no child process to end."""


class ChildSweep:
    """Sweep that examines operators in a child process, and replaces the process if it dies."""

    def __init__(
        self,
        device: str,
        *,
        modules: Sequence[str] = (),
        path: Sequence[str] = (),
        examiner: str = EXAMINER,
        timeout: float = 300.0,
    ) -> None:
        """Configure a child process that examines operators on the device named ``device``.

        ``examiner`` is the function that the child calls, as ``module:function``, with the signature of ``answer``.
        ``timeout`` is the time limit of one operator in seconds.
        """
        self._device = device
        self.process = Isolated(examiner, modules=modules, path=path, timeout=timeout)

    def examine(self, check: str, overload: str, dtype: torch.dtype) -> dict[str, Any]:
        """Examine an operator in the child process, which is replaced if it dies or can no longer use its device."""
        request = {"device": self._device, "check": check, "overload": overload, "dtype": dtype_name(dtype)}
        result: dict[str, Any] = self.process.ask(request, overload)
        return result

    def close(self) -> None:
        """End the child process; raises ExaminationFailed if it does not exit with status 0."""
        self.process.close()


def answer(request: Mapping[str, str], device: Device) -> dict[str, Any]:
    """Examine the operator that a request of ChildSweep names; runs in the child process."""
    import torch

    return checks.examine(request["check"], request["overload"], device, getattr(torch, request["dtype"]))
