"""Commands in reports that find the release which introduced a change."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from packaging.version import InvalidVersion, Version

from pytest_amp.record import FAILING, Difference

#: Family of a user's own tests, whose paths a record does not contain.
_OF_A_PROJECT = "project"


def bisect_command(test: str, target: str, rerun: str | None, old: str, new: str) -> str | None:
    """Return the command that finds the release of a failure's change; None if ``new`` is not newer than ``old``.

    ``rerun`` is the command that runs the test again, ``test`` its id, used if there is no command.
    """
    words = shlex.split(rerun)[1:] if rerun is not None else [test]
    chosen = [word for word in words if not word.startswith("-")]
    return _command([*chosen, *_needed(words)], target, old, new)


def _needed(words: Iterable[str]) -> list[str]:
    """Return the option of bisect with the words of a command without which pytest does not select the test."""
    needed = [word for word in words if word == "--pyargs" or word.startswith("--amp-tier=")]
    return [f"--pytest-args={' '.join(needed)}"] if needed else []


def _command(chosen: Sequence[str], target: str, old: str, new: str) -> str | None:
    try:
        first, last = Version(old), Version(new)
    except InvalidVersion:
        return None
    if last <= first or last.public == first.public:
        return None
    device, _, dtype = target.rpartition("-")
    place = (f"--device={device.replace('fake-', 'fake:', 1)}", f"--dtype={dtype}")
    return shlex.join(["pytest-amp", "bisect", first.public, last.public, *chosen, *place])


def of_difference(difference: Difference) -> dict[str, str]:
    """Return the command that finds the release of each failing difference, by key; one for each test of the suites."""
    old, new = (str(record.provenance.get("torch")) for record in (difference.old, difference.new))
    by_test: dict[tuple[str, str], str | None] = {}
    commands = {}
    words = shlex.split(str(difference.new.provenance.get("command", "")))
    tier = _needed(word for word in words if word != "--pyargs")
    for observation in difference.observations:
        if observation.family == _OF_A_PROJECT or observation.verdict not in FAILING:
            continue
        name = observation.test.rpartition("::")[2]
        if (observation.family, name) not in by_test:
            target = observation.place
            by_test[observation.family, name] = _command(["-k", name, *tier], target, old, new) if name else None
        command = by_test[observation.family, name]
        if command is not None:
            commands[observation.key] = command
    return commands
