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
        "tools/injected_on_device.py",
    }
)
#: Names that do not describe their value, but that it exists or what was done to it.
EMPTY = frozenset(
    {
        *("found", "made", "given", "each", "told", "kept", "own", "asked", "wanted", "said", "held", "seen", "taken"),
        *("others", "another", "ours", "theirs"),
    }
)
#: Attributes and fixtures of these names: users see them, or their class says what they are.
NAMED_SO = {
    "pytest_amp/numerics/locate.py": {"given"},
    "pytest_amp/numerics/oracle/observer.py": {"given"},
    "pytest_amp/numerics/oracle/operation.py": {"given"},
    "pytest_amp/numerics/oracle/trace.py": {"given"},
    "pytest_amp/precision/float32.py": {"own"},
    "pytest_amp/scaler/iteration.py": {"kept"},
    "pytest_amp/semantics/programs.py": {"others", "seen"},
    "pytest_amp/torch_private/storages.py": {"given"},
    "pytest_amp/training/trajectory.py": {"kept"},
    "tests/backends/tiny_backend.py": {"held"},
    "tests/report/test_browser.py": {"asked", "said", "seen"},
    "tests/test_no_torch.py": {"told"},
    "tests/tools/test_fingerprint_update.py": {"others"},
}


def empty_names(source: str) -> set[str]:
    """Return the words of ``EMPTY`` that a source binds as a variable, an argument or an attribute of a class."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names & EMPTY


@pytest.mark.parametrize("folder", FOLDERS)
def test_variables_have_no_empty_names(folder: str) -> None:
    paths = {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / folder).rglob("*.py"))}
    empty = {name: empty_names(path.read_text(encoding="utf-8")) for name, path in paths.items()}
    expected = {name: words for name, words in NAMED_SO.items() if name in paths}
    assert {name: words for name, words in empty.items() if words} == expected


def test_empty_names_are_detected_in_every_binding() -> None:
    source = "def f(given):\n    found = [each for each in given]\n    return found\n"
    assert empty_names(source) == {"given", "found", "each"}


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


def test_exempt_files_need_their_exemption() -> None:
    assert [name for name in sorted(PRINTED) if not openers(Path(ROOT, name).read_text(encoding="utf-8"))] == []


def test_openers_are_detected_in_every_kind_of_docstring() -> None:
    source = '"""What it is."""\nclass A:\n    """`Whether` it is."""\n    def b(self):\n        """Return it."""\n'
    assert openers(source) == ["What it is.", "`Whether` it is."]
