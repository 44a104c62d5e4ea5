"""Fingerprints from a child process, which an entry may bring down: it is named, and the rest goes on in another.

The child is also where ``torch.testing._internal`` is imported, which changes the process that does it. One
child serves the CPU and all fake devices; an accelerator has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pytest_amp.devices import Device, DeviceKind
from pytest_amp.fingerprint.dtypes import LOST, NOT, joined
from pytest_amp.isolation import ExaminationFailed, Isolated, ProcessLost

#: What a child calls to answer.
EXAMINER = "pytest_amp.fingerprint.child:answer"
#: How many samples of one entry may bring a process down before its others are given up.
LOSSES = 3


class NoEntries(Exception):
    """What torch's own tests know cannot be read here: nothing can be looked at."""


class FingerprintSweep:
    """Asks for fingerprints, of any device."""

    def __init__(
        self,
        *,
        modules: Sequence[str] = (),
        path: Sequence[str] = (),
        timeout: float = 120.0,
    ) -> None:
        """``modules`` and ``path`` are as for Isolated; one entry may take ``timeout`` seconds."""
        self._new: Callable[[], Isolated] = partial(Isolated, EXAMINER, modules=modules, path=path, timeout=timeout)
        self._processes: dict[str, Isolated] = {}
        self._entries: dict[str, tuple[str, ...]] = {}
        #: What brought a process down: a line for each, in which it is named.
        self.losses: list[str] = []

    def entries(self, device: Device) -> tuple[str, ...]:
        """The names of all operators and modules that torch's own tests know. Raises NoEntries."""
        place = _place(device)
        if place not in self._entries:
            try:
                found = self._process(device).ask({"device": device.name}, "the list of operators")
            except ExaminationFailed as failed:
                raise NoEntries(str(failed)) from None
            if "unavailable" in found:
                raise NoEntries(found["unavailable"])
            self._entries[place] = (*found["operators"], *found["modules"])
        return self._entries[place]

    def fingerprint(self, name: str, device: Device, dtype_name: str) -> str:
        """The fingerprint of an entry on ``device`` under autocast in ``bfloat16`` or ``float16``.

        Where a sample brings the process down, the others are looked at one by one, and ``lost`` is part of
        the fingerprint. Raises ExaminationFailed where nothing can be said.
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
            found, how = _try(process, {**request, "sample": number}, name)
            patterns += found
            lost += [f"{where}, sample {number}: it {how}"] if how else []
            if len(lost) == LOSSES:
                break
        self.losses += lost or [f"{where}: all its samples together, and none alone"]
        return joined([*patterns, LOST])

    def close(self) -> None:
        """End the processes; raises ExaminationFailed if one does not end well."""
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
    """The patterns of one sample, and how it brought the process down."""
    try:
        found = str(process.ask(request, name))
    except ProcessLost as loss:
        return [], loss.how
    return [] if found.startswith(NOT) else found.split("; "), ""


def _ending(process: Isolated) -> str:
    """How a process ended badly."""
    try:
        process.close()
    except ExaminationFailed as failed:
        return str(failed)
    return ""
