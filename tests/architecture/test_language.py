"""Docstrings open with a verb or a noun: one that opens with a question word or a preposition describes no thing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.project import ROOT

FOLDERS = ("pytest_amp", "suites", "tests", "tools", "examples", ".github")
OPENERS = frozenset(
    {"what", "where", "whether", "who", "how", "why", "which", "those", "that", "these", "of", "as", "by"}
)
#: Files whose docstrings are printed, or make a page of the reference: they change together with it.
PRINTED = frozenset(
    {
        "pytest_amp/devices/base.py",
        "pytest_amp/precision/formats.py",
        "pytest_amp/record/file.py",
        "pytest_amp/record/observation.py",
        "pytest_amp/scaler/iteration.py",
        "suites/semantics/test_decorator.py",
        "suites/semantics/test_region_class.py",
        "tools/folklore_on_device.py",
        "tools/injected_on_device.py",
        "tools/pages/training_bands.py",
    }
)


def openers(source: str) -> list[str]:
    """Return the first lines of the docstrings in a source that open with a word of ``OPENERS``."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = (ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, owners))
    return [text.splitlines()[0] for text in texts if text and text.split()[0].strip("`\"',.:").lower() in OPENERS]


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_open_with_a_verb_or_a_noun(folder: str) -> None:
    lines = {
        path.relative_to(ROOT).as_posix(): openers(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    assert {name: line for name, line in lines.items() if line and name not in PRINTED} == {}


def test_printed_files_are_there_and_need_the_exception() -> None:
    assert [name for name in sorted(PRINTED) if not openers(Path(ROOT, name).read_text(encoding="utf-8"))] == []


def test_openers_are_found_in_every_kind_of_docstring() -> None:
    source = '"""What it is."""\nclass A:\n    """`Whether` it is."""\n    def b(self):\n        """Return it."""\n'
    assert openers(source) == ["What it is.", "`Whether` it is."]
