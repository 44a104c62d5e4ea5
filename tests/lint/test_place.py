"""Places of calls: the user's line, and the line of a library that makes the call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from pytest_amp.lint.place import Place, calling_place
from pytest_amp.numerics.callers import Author, author_of, short


def module_in(file: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Place]], Place]:
    """Return ``called`` of a module that is written to a file, and imported by a name."""
    file.write_text("def called(function):\n    return function()\n")
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    called: Callable[[Callable[[], Place]], Place] = module.called
    return called


def test_module_that_a_package_writes_into_a_temporary_file_is_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "numpy.written_by_chance_x1y2.py"
    place = module_in(file, "numpy.written", monkeypatch)(calling_place)
    assert author_of(f"{file}") is Author.LIBRARY
    assert place.line.startswith("tests/lint/test_place.py:")
    assert place.library == "numpy.written:2"


def test_module_of_the_users_in_a_temporary_file_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.py"
    place = module_in(file, "mine", monkeypatch)(calling_place)
    assert author_of(f"{file}") is Author.USER
    assert place.line == f"{short(f'{file}')}:2"
    assert place.library == ""
