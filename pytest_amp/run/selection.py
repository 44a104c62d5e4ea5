"""Processing of collected tests: their identity, deselection and counts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_amp.data_files.releases import release_of
from pytest_amp.families import family_of, family_of_package
from pytest_amp.known.expected import expected_failure, fault_of, faults_beside
from pytest_amp.markers import AmpMarker
from pytest_amp.run.identity import FAULT, INFO, MARKER, info_of, key_of, target_of
from pytest_amp.run.parametrization import Place
from pytest_amp.run.session import Collected, Messages, RequestedTargets, Selection
from pytest_amp.run.tally import TestInfo
from pytest_amp.run.targets import Target


def keep_together(items: list[pytest.Item]) -> None:
    """Keep the amp_parametrize tests of one file and target together, at the position of the first of them.

    A session has one target at a time, so pytest treats their parameters as session-scoped and groups tests by the
    position of a parameter, across files; the terminal would then start a new line for each test.
    """
    places = [index for index, item in enumerate(items) if item.get_closest_marker("amp_parametrize") is not None]
    together: dict[tuple[str, Path], list[pytest.Item]] = {}
    for item in (items[index] for index in places):
        target = target_of(item)
        together.setdefault((target.id if target else "", item.path), []).append(item)
    ordered = [item for group in together.values() for item in group]
    for index, item in zip(places, ordered, strict=True):
        items[index] = item


def select(
    items: list[pytest.Item], tier: str, requested: RequestedTargets, messages: Messages
) -> list[tuple[pytest.Item, str]]:
    """Note the identity of each amp test, and remove tests that do not exist on their target or in ``tier``.

    Return the removed tests with their reasons.
    """
    selected, dropped = [], []
    for item in items:
        reason = _noted(item, requested, messages) or _other_tier(item, tier)
        if reason is None:
            selected.append(item)
        else:
            dropped.append((item, reason))
    items[:] = selected
    return dropped


def folders_of(items: Iterable[pytest.Item]) -> dict[str, Path]:
    """Return the folder of each family's package, by the family's name."""
    packages = {getattr(getattr(item, "module", None), "__package__", None) for item in items if INFO in item.stash}
    families = (family_of_package(package) for package in packages)
    return {family.name: folder for family, folder in families if folder is not None}


def _noted(item: pytest.Item, requested: RequestedTargets, messages: Messages) -> str | None:
    target = target_of(item)
    if target is None:
        return None
    try:
        marker = AmpMarker.merged(item.iter_markers("amp"))
    except ValueError as error:  # from a mark of pytest.param, which is not known earlier
        messages.usage_error(f"{item.nodeid} (marker amp): {error}")
        return None
    info = info_of(item, target)
    place = Place(marker, family_of(getattr(item, "module", None)), requested)
    item.stash[MARKER] = marker
    item.stash[INFO] = info
    if "benchmark" in getattr(item, "fixturenames", ()):
        from pytest_amp.speed.benchmark import install

        install(item)  # before any fixture is created, in whatever order
    report = marker.expected_failure(target.device.key, target.precision.name)
    if report is not None:
        item.add_marker(pytest.mark.xfail(strict=True, reason=report))
    _expect_fault(item, info, target, messages)
    for label, value in (
        ("device", target.device.key),
        ("dtype", target.precision.name),
        ("family", place.family.name),
    ):
        item.user_properties.append((f"amp_{label}", value))
    return place.unfit(target)


def _expect_fault(item: pytest.Item, info: TestInfo, target: Target, messages: Messages) -> None:
    """Mark the test as a strict xfail if a known fault of this release covers it."""
    family, folder = family_of_package(getattr(getattr(item, "module", None), "__package__", None))
    if folder is None:
        return
    try:
        rows = faults_beside(folder, family.name)
        if not rows:
            return
        import torch

        row = fault_of(
            key_of(item, info, target),
            rows,
            release_of(torch.__version__),
            device_type=target.device.type,
            precision=target.precision.name,
        )
        if row is not None:
            item.add_marker(expected_failure(row))
            item.stash[FAULT] = row
    except ValueError as error:
        messages.usage_error(str(error))


def _other_tier(item: pytest.Item, tier: str) -> str | None:
    family = _long_family(item)
    long = family is not None or item.get_closest_marker("amp_long") is not None
    if tier == "ordinary" and long:
        return f"{family or ''}long tier (--amp-tier=long)"
    if tier == "long" and not long and INFO in item.stash:
        return "ordinary tier (--amp-tier=ordinary)"
    return None


def _long_family(item: pytest.Item) -> str | None:
    """Return ``kernels on cpu: `` if the whole family belongs to the long tier on this kind of device."""
    target, family = target_of(item), family_of(getattr(item, "module", None))
    if target is None or target.device.kind not in family.long_on:
        return None
    return f"{family.name} on {target.device.type}: "


def count_made(items: object, selection: Selection) -> None:
    """Count the tests by function, to check later that all parameters of a function ran."""
    for item in items if isinstance(items, list) else [items]:
        if isinstance(item, pytest.Item) and (target := target_of(item)) is not None:
            info = info_of(item, target)
            selection.created[info.target, info.family, info.test] += 1


def count_selected(items: Iterable[pytest.Item], selection: Selection, collected: Collected) -> None:
    """Count the selected tests by target and family; the run fails if none of a group is executed."""
    for item in items:
        info = item.stash.get(INFO, None)
        if info is not None:
            selection.selected[info.target, info.family] += 1
            collected.selected.add(item.nodeid)
