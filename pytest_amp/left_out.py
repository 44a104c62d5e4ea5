"""Parts of a family that a project's own ini keeps from being collected: its patterns are not meant for suites."""

from __future__ import annotations

import fnmatch
import inspect
import os
from pathlib import Path

import pytest

from pytest_amp.families import PROJECT, declared_around, family_of
from pytest_amp.session import AmpSession


def note_folder(path: Path, session: AmpSession) -> None:
    """The package ``path`` was ignored: by the key norecursedirs, or by an option, which says so by itself."""
    patterns = session.config.getini("norecursedirs")
    if not any(_fits(path, pattern) for pattern in patterns) or not declared_around(path):
        return
    if path not in {Path(each).absolute() for each in session.config.getoption("ignore") or ()}:
        _note(path, "norecursedirs", f"--ignore={path}", session)


def note_file(path: Path, session: AmpSession) -> None:
    """Nothing was made of the file ``path``, which is called as a test is."""
    if declared_around(path.parent):
        _note(path, "python_files", "test_*.py among its patterns", session)


def note_function(collector: pytest.Collector, found: object, session: AmpSession) -> None:
    """Nothing was made of ``found``, which is called as a test is in a module or a class."""
    if not inspect.isfunction(found):
        return
    module = getattr(collector, "module", None) or getattr(collector, "obj", None)
    if found.__module__ == getattr(module, "__name__", None) and family_of(module) is not PROJECT:
        _note(collector.path, "python_functions", "test among its prefixes", session)


def judge(session: pytest.Session, amp_session: AmpSession) -> None:
    """A usage error for each part that was asked for, as a folder or a file that is an argument, or is in one."""
    for path, problem in sorted(amp_session.left_out.items()):
        if any(session.isinitpath(each) for each in (path, *path.parents)):
            amp_session.usage_error(problem)


def _fits(path: Path, pattern: str) -> bool:
    return fnmatch.fnmatch(path.name if os.sep not in pattern else str(path), pattern)


def _note(path: Path, key: str, valid: str, session: AmpSession) -> None:
    value = " ".join(session.config.getini(key))
    problem = f"{key} = {value}: leaves out checks of a family, in {path}; valid: {valid}"
    session.left_out.setdefault(path, problem)
