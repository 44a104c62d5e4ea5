"""Identity of an amp test: its target, its family, its name and key, and what its stash holds while it runs."""

from __future__ import annotations

import pytest

from pytest_amp.families import family_of_package
from pytest_amp.known.rows import Known
from pytest_amp.markers import AmpMarker
from pytest_amp.record import Observation
from pytest_amp.run.tally import TestInfo
from pytest_amp.run.targets import Target

#: Parameter that holds a test's target.
TARGET = "_amp_target"
#: Identity and marker of an amp test, in its stash.
INFO = pytest.StashKey[TestInfo]()
MARKER = pytest.StashKey[AmpMarker]()
#: Known fault of torch for which a test is expected to fail, in its stash.
FAULT = pytest.StashKey[Known]()
#: Observations and notes of a running test, in its stash.
OBSERVATIONS = pytest.StashKey[list[Observation]]()
NOTES = pytest.StashKey[list[str]]()


def target_of(item: pytest.Item) -> Target | None:
    """Return the target of a parametrized amp test; None for any other."""
    callspec = getattr(item, "callspec", None)
    target = callspec.params.get(TARGET) if callspec is not None else None
    return target if isinstance(target, Target) else None


def info_of(item: pytest.Item, target: Target) -> TestInfo:
    """Return the identity of an amp test; names have no parameters, and in a family no folder above its package."""
    family, folder = family_of_package(getattr(getattr(item, "module", None), "__package__", None))
    file, _, rest = item.nodeid.partition("::")  # split here, since a folder's name may contain a bracket
    if folder is not None and item.path.is_relative_to(folder):
        file = item.path.relative_to(folder).as_posix()
    name = f"{file.removesuffix('.py')}::{rest.partition('[')[0]}"
    return TestInfo(target.id, family.name, name, target.missing is not None)


def key_of(item: pytest.Item, info: TestInfo, target: Target) -> str:
    """Return the key of a test itself, with its parameters: ``rules/cuda/bf16/test_registered::test_rule[mm]``."""
    device, _, dtype = info.target.rpartition("-")
    parameters = own_parameters(item, target)
    key = f"{info.family}/{device}/{dtype}/{info.test}" + (f"[{parameters}]" if parameters else "")
    return "".join(letter if letter.isprintable() else "?" for letter in key)


def own_parameters(item: pytest.Item, target: Target) -> str:
    """Return the parameters of a test without device, dtype and repetition: ``3`` of ``test_it[cpu-bf16-3]``."""
    parameters = item.name.partition("[")[2].removesuffix("]")
    for part in filter(None, (_repetition(item), target.id)):
        before, _, after = f"-{parameters}-".partition(f"-{part}-")
        parameters = "-".join(rest for rest in (before.strip("-"), after.strip("-")) if rest)
    return parameters


def _repetition(item: pytest.Item) -> str | None:
    """Return pytest-repeat's part of the parameters, such as ``2-5``; each repetition is the same test."""
    callspec = getattr(item, "callspec", None)
    step = callspec.params.get("__pytest_repeat_step_number") if callspec is not None else None
    if step is None:
        return None
    marker = item.get_closest_marker("repeat")
    count = marker.args[0] if marker is not None and marker.args else item.config.getoption("count", 1)
    return f"{step + 1}-{count}"
