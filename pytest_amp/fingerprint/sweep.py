"""Fingerprints from a child process; if an entry crashes it, the entry is named and another process continues.

The child also imports ``torch.testing._internal``, which changes the importing process. One child serves the CPU and
all fake devices; an accelerator has a separate one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pytest_amp.child_process import ExaminationFailed, Isolated, ProcessLost
from pytest_amp.devices import Device, DeviceKind
from pytest_amp.fingerprint.dtypes import LOST, NOT, joined

#: The function that a child calls to answer a request.
EXAMINER = "pytest_amp.fingerprint.child:answer"
#: The number of samples of one entry that may crash a process before the remaining ones are skipped.
LOSSES = 3


class NoEntries(Exception):
    """Error if torch's own tests cannot be imported, so that there are no entries."""


class FingerprintSweep:
    """Requests of fingerprints on any device to child processes."""

    def __init__(
        self,
        *,
        modules: Sequence[str] = (),
        path: Sequence[str] = (),
        timeout: float = 120.0,
    ) -> None:
        """Pass ``modules`` and ``path`` to Isolated; one entry may take ``timeout`` seconds."""
        self._new: Callable[[], Isolated] = partial(Isolated, EXAMINER, modules=modules, path=path, timeout=timeout)
        self._processes: dict[str, Isolated] = {}
        self._entries: dict[str, tuple[str, ...]] = {}
        #: The samples that crashed a process, a line for each.
        self.losses: list[str] = []

    def entries(self, device: Device) -> tuple[str, ...]:
        """Return the names of all operators and modules in torch's own tests. Raises NoEntries."""
        place = _place(device)
        if place not in self._entries:
            try:
                actual = self._process(device).ask({"device": device.name}, "the list of operators")
            except ExaminationFailed as failed:
                raise NoEntries(str(failed)) from None
            if "unavailable" in actual:
                raise NoEntries(actual["unavailable"])
            self._entries[place] = (*actual["operators"], *actual["modules"])
        return self._entries[place]

    def fingerprint(self, name: str, device: Device, dtype_name: str) -> str:
        """Return the fingerprint of an entry on ``device`` under autocast in ``bfloat16`` or ``float16``.

        If a sample crashes the process, the samples are observed one by one, and ``lost`` is part of the fingerprint.
        Raises ExaminationFailed if there is no fingerprint.
        """
        process = self._process(device)
        request: dict[str, Any] = {"device": device.name, "name": name, "dtype": dtype_name}
        try:
            return str(process.ask(request, name))
        except ProcessLost:
            return self._one_by_one(process, request, name)

    def _one_by_one(self, process: Isolated, request: dict[str, Any], name: str) -> str:
        count = process.ask({key: value for key, value in request.items() if key != "dtype"}, name)
        where = f"{name} on {request['device']} in {request['dtype']}"
        patterns: list[str] = []
        lost: list[str] = []
        for number in range(count):
            actual, how = _try(process, {**request, "sample": number}, name)
            patterns += actual
            lost += [f"{where}, sample {number}: it {how}"] if how else []
            if len(lost) == LOSSES:
                break
        self.losses += lost or [f"{where}: all its samples together, and none alone"]
        return joined([*patterns, LOST])

    def close(self) -> None:
        """End the processes; raises ExaminationFailed if one does not end with status 0."""
        processes, self._processes = self._processes, {}
        failures = [text for process in processes.values() if (text := _ending(process))]
        if failures:
            raise ExaminationFailed("; ".join(failures))

    def _process(self, device: Device) -> Isolated:
        place = _place(device)
        if place not in self._processes:
            self._processes[place] = self._new()
        return self._processes[place]


def _place(device: Device) -> str:
    return device.name if device.kind is DeviceKind.ACCELERATOR else "here"


def _try(process: Isolated, request: dict[str, Any], name: str) -> tuple[list[str], str]:
    """Return the patterns of one sample, and how it crashed the process, if it did."""
    try:
        actual = str(process.ask(request, name))
    except ProcessLost as loss:
        return [], loss.how
    return [] if actual.startswith(NOT) else actual.split("; "), ""


def _ending(process: Isolated) -> str:
    """End a process, and return the failure, if any."""
    try:
        process.close()
    except ExaminationFailed as failed:
        return str(failed)
    return ""
