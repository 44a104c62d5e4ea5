"""What is made of collected tests: what each is, which are deselected, and how many there are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_amp import faults
from pytest_amp.families import family_of, family_of_package
from pytest_amp.known import key_of_test
from pytest_amp.markers import AmpMarker
from pytest_amp.parametrization import TARGET, Place
from pytest_amp.releases import release_of
from pytest_amp.session import AmpSession
from pytest_amp.tally import TestInfo
from pytest_amp.targets import Target

#: What an amp test is, and its marker, in its stash.
INFO = pytest.StashKey[TestInfo]()
MARKER = pytest.StashKey[AmpMarker]()


def keep_together(items: list[pytest.Item]) -> None:
    """Put tests of amp_parametrize that have one file and one target next to each other, where the first of them was.

    A session has one target at a time, so that pytest takes their parameters for the session's and brings together
    those that have the same place in the list of a test, whatever file that is in: a terminal had a line for each.
    """
    places = [index for index, item in enumerate(items) if item.get_closest_marker("amp_parametrize") is not None]
    together: dict[tuple[str, Path], list[pytest.Item]] = {}
    for item in (items[index] for index in places):
        target = target_of(item)
        together.setdefault((target.id if target else "", item.path), []).append(item)
    ordered = [item for group in together.values() for item in group]
    for index, item in zip(places, ordered, strict=True):
        items[index] = item


def select(items: list[pytest.Item], session: AmpSession) -> None:
    """Note what each amp test is, and deselect what does not exist on its target or is not of this tier."""
    if session.asked.speed == "gate":
        _ = session.speed  # asked for by name: a usage error where it cannot be, also without a test of speed
    kept, dropped = [], []
    for item in items:
        reason = _noted(item, session) or _other_tier(item, session)
        if reason is None:
            kept.append(item)
        else:
            dropped.append(item)
            session.deselected[reason] += 1
    session.note_provenance()
    session.note_families(_folders(kept))
    if dropped:
        items[:] = kept
        session.dropped += dropped
        session.config.hook.pytest_deselected(items=dropped)


def _folders(items: Iterable[pytest.Item]) -> dict[str, Path]:
    """The folder of each family's package, by the family's name."""
    packages = {getattr(getattr(item, "module", None), "__package__", None) for item in items if INFO in item.stash}
    found = (family_of_package(package) for package in packages)
    return {family.name: folder for family, folder in found if folder is not None}


def target_of(item: pytest.Item) -> Target | None:
    """The target of a parametrized amp test."""
    callspec = getattr(item, "callspec", None)
    target = callspec.params.get(TARGET) if callspec is not None else None
    return target if isinstance(target, Target) else None


def _noted(item: pytest.Item, session: AmpSession) -> str | None:
    target = target_of(item)
    if target is None:
        return None
    try:
        marker = AmpMarker.merged(item.iter_markers("amp"))
    except ValueError as error:  # in a mark of pytest.param, which is not there before
        session.usage_error(f"{item.nodeid} (marker amp): {error}")
        return None
    info = info_of(item, target)
    place = Place(marker, family_of(getattr(item, "module", None)), session)
    item.stash[MARKER] = marker
    item.stash[INFO] = info
    if "benchmark" in getattr(item, "fixturenames", ()):
        from pytest_amp.speed.benchmark import install

        install(item)  # before the fixture is made, in whatever order
    report = marker.expected_failure(target.device.key, target.precision.name)
    if not _is_mended(item, info, target, session) and report is not None:
        item.add_marker(pytest.mark.xfail(strict=True, reason=report))
    for label, value in (
        ("device", target.device.key),
        ("dtype", target.precision.name),
        ("family", place.family.name),
    ):
        item.user_properties.append((f"amp_{label}", value))
    return place.unfit(target)


def _is_mended(item: pytest.Item, info: TestInfo, target: Target, session: AmpSession) -> bool:
    """Apply the known faults beside the test's family; return whether this release mends one that the test declares."""
    _, folder = family_of_package(getattr(getattr(item, "module", None), "__package__", None))
    if folder is None:
        return False
    import torch

    try:
        known = faults.faults_beside(folder)
    except ValueError as error:
        session.usage_error(str(error))
        return False
    if not known:
        return False
    key = key_of_test(info, own_parameters(item, target))
    return faults.apply(item, key, known, release_of(torch.__version__))


def _other_tier(item: pytest.Item, session: AmpSession) -> str | None:
    tier = session.asked.tier
    long = item.get_closest_marker("amp_long") is not None
    if tier == "ordinary" and long:
        return "long tier (--amp-tier=long)"
    if tier == "long" and not long and INFO in item.stash:
        return "ordinary tier (--amp-tier=ordinary)"
    return None


def info_of(item: pytest.Item, target: Target) -> TestInfo:
    """What an amp test is. Its name has no parameters, and in a family's package no folder above the package."""
    family, folder = family_of_package(getattr(getattr(item, "module", None), "__package__", None))
    file, _, rest = item.nodeid.partition("::")  # a folder may have a bracket in its name
    if folder is not None and item.path.is_relative_to(folder):
        file = item.path.relative_to(folder).as_posix()
    name = f"{file.removesuffix('.py')}::{rest.partition('[')[0]}"
    return TestInfo(target.id, family.name, name, target.missing is not None)


def own_parameters(item: pytest.Item, target: Target) -> str:
    """The parameters of a test without device, dtype and repetition: ``3`` of ``test_it[cpu-bf16-3]``."""
    given = item.name.partition("[")[2].removesuffix("]")
    for part in filter(None, (_repetition(item), target.id)):
        before, _, after = f"-{given}-".partition(f"-{part}-")
        given = "-".join(rest for rest in (before.strip("-"), after.strip("-")) if rest)
    return given


def _repetition(item: pytest.Item) -> str | None:
    """What pytest-repeat adds to a test's parameters: ``2-5``; each repetition is the same test."""
    given = getattr(item, "callspec", None)
    step = given.params.get("__pytest_repeat_step_number") if given is not None else None
    if step is None:
        return None
    marker = item.get_closest_marker("repeat")
    count = marker.args[0] if marker is not None and marker.args else item.config.getoption("count", 1)
    return f"{step + 1}-{count}"


def count_made(made: object, session: AmpSession) -> None:
    """Count the tests that one function became, so that later it is known whether all of them ran."""
    for item in made if isinstance(made, list) else [made]:
        if isinstance(item, pytest.Item) and (target := target_of(item)) is not None:
            info = info_of(item, target)
            session.made[info.target, info.family, info.test] += 1


def count_selected(items: Iterable[pytest.Item], session: AmpSession) -> None:
    """Count what will run by target and family: each was asked for, and the run is red if none is executed."""
    for item in items:
        info = item.stash.get(INFO, None)
        if info is not None:
            session.selected[info.target, info.family] += 1
            session.selected_nodes.add(item.nodeid)
