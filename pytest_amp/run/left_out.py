"""Parts of a family that are lost in collection: ignored by an ini key or a conftest.py, skipped, or empty."""

from __future__ import annotations

import fnmatch
import inspect
import os
from pathlib import Path

import pytest

from pytest_amp.families import PROJECT, declared_around, family_of, named_in
from pytest_amp.run.session import Collected, Messages, Selection

#: Causes for which pytest ignores a path, besides norecursedirs.
_IGNORED = "collect_ignore or collect_ignore_glob of a conftest.py, or the hook pytest_ignore_collect"
#: Methods for which pytest collects nothing from a class that python_classes matches.
_CONSTRUCTORS = ("__init__", "__new__")


def note_ignored(path: Path, config: pytest.Config, collected: Collected) -> None:
    """Note an ignored folder or file ``path``, unless the user ignores it with an option."""
    folder = path if path.is_dir() else path.parent
    if (path is not folder and not path.name.startswith("test_")) or not declared_around(folder):
        return
    if _is_ignored_by_an_option(path, config):
        return
    valid = f"--ignore={path}"
    if path is folder and any(_fits(path, pattern) for pattern in config.getini("norecursedirs")):
        _note(path, _setting("norecursedirs", config), valid, collected)
    else:
        _note(path, _IGNORED, valid, collected)


def note_file(path: Path, config: pytest.Config, collected: Collected) -> None:
    """Note the file ``path``, named like a test file, from which nothing was collected."""
    if declared_around(path.parent):
        _note(path, _setting("python_files", config), "test_*.py among its patterns", collected)


def note_object(collector: pytest.Collector, value: object, collected: Collected) -> None:
    """Note ``value``, named like a test or a test class, from which nothing was collected in a module or a class."""
    key, prefix = ("python_classes", "Test") if inspect.isclass(value) else ("python_functions", "test")
    if not (inspect.isclass(value) or inspect.isfunction(value)) or not getattr(value, "__test__", True):
        return
    module = getattr(collector, "module", None) or getattr(collector, "obj", None)
    if value.__module__ == getattr(module, "__name__", None) and family_of(module) is not PROJECT:
        _note(collector.path, _setting(key, collector.config), f"{prefix} among its prefixes", collected)


def note_empty(collector: pytest.Module | pytest.Class, collected: Collected) -> None:
    """Note a module or a class of a family without a test. ``--lf`` empties modules without a failure."""
    if collector.config.getoption("lf", False) or declared_around(collector.path.parent) is None:  # noqa: FBT003  # pytest's
        return
    if isinstance(collector, pytest.Module):
        _note(collector.path, "its collection", "at least one test in it, or another name", collected)
        return
    constructor = next((name for name in _CONSTRUCTORS if name in vars(collector.obj)), None)
    why = f"the class {collector.name}" + (
        f" with {constructor}, of which pytest makes no test," if constructor else ", without a test,"
    )
    _note(collector.path, why, "a class without a constructor, with tests", collected)


def note_skipped(
    collector: pytest.Collector, report: pytest.CollectReport, selection: Selection, messages: Messages
) -> None:
    """Note a collector that skipped itself, and whose tests are therefore unknown.

    This is a module, or a package or folder whose ``__init__.py`` or conftest.py skips. The run fails if no other part
    of its family ran, or if it was requested by name.
    """
    path = collector.path
    folder = path if path.is_dir() else path.parent
    around = declared_around(folder)
    declared = [around] if around is not None else [*map(declared_around, _packages_in(path))]
    families = {root: named_in(root) for root in declared if root is not None}
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    for root, name in families.items():
        selection.active = True
        where = report.nodeid if around is not None else f"{report.nodeid}: {root}"
        selection.skipped_modules[where] = (name, reason)
    if around is not None and any(map(collector.session.isinitpath, _below(path, around))):
        messages.problem(f"{report.nodeid} was asked for, and was skipped while it was collected: {reason}")


def judge(session: pytest.Session, collected: Collected, messages: Messages) -> None:
    """Add a usage error for each lost part that was requested, as an argument or inside of one."""
    for path, problem in sorted(collected.left_out.items()):
        if any(session.isinitpath(parent) for parent in (path, *path.parents)):
            messages.usage_error(problem)


def _packages_in(path: Path) -> list[Path]:
    return sorted(file.parent for file in path.rglob("__init__.py")) if path.is_dir() else []


def _below(path: Path, folder: Path) -> list[Path]:
    """Return ``path`` and the folders around it that lie in ``folder``."""
    return [parent for parent in (path, *path.parents) if folder in parent.parents]


def _fits(path: Path, pattern: str) -> bool:
    return fnmatch.fnmatch(path.name if os.sep not in pattern else str(path), pattern)


def _is_ignored_by_an_option(path: Path, config: pytest.Config) -> bool:
    paths, patterns = (
        [os.path.abspath(part) for part in config.getoption(name) or ()]  # noqa: PTH100  # a pattern is no path
        for name in ("ignore", "ignore_glob")
    )
    return any(
        str(part) in paths or any(fnmatch.fnmatch(str(part), pattern) for pattern in patterns)
        for part in (path, *path.parents)
    )


def _setting(key: str, config: pytest.Config) -> str:
    return f"{key} = {' '.join(config.getini(key))}"


def _note(path: Path, cause: str, valid: str, collected: Collected) -> None:
    problem = f"{cause}: leaves out checks of a family, in {path}; expected {valid}"
    collected.left_out.setdefault(path, problem)
