"""Each kind of finding has a page, and each page a kind."""

from __future__ import annotations

import ast
import re

import pytest

from pytest_amp import cli
from pytest_amp.check.entry import Entry
from pytest_amp.lint import Severity
from pytest_amp.lint.kinds import KINDS as FINDINGS
from tests.project import ROOT

PAGES = ROOT / "docs" / "findings"
#: Kinds of entries that are from the checks; the others are findings of the linter.
CHECKS = frozenset(
    {
        "check-casts",
        "check-compiled",
        "check-dtypes",
        "check-gradients",
        "check-harm",
        "check-linter",
        "check-memory",
        "check-scaler",
        "check-training",
        "expected-finding-gone",
        "harmful-cast",
        "low-branch",
        "training-cannot-tell",
    }
)
KINDS = CHECKS | FINDINGS.keys()
#: Pattern of a kind in source code.
KIND = re.compile(r"[a-z]+(-[a-z]+)+")


def _kinds_in_source() -> set[str]:
    """Return the names of kinds among the text of ``pytest_amp.check``."""
    files = (ROOT / "pytest_amp" / "check").glob("*.py")
    texts = {
        node.value
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {text for text in texts if KIND.fullmatch(text)}


def test_each_kind_has_a_page_and_each_page_a_kind() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} - {"index", "compared"} == KINDS


def test_kinds_used_by_checks_are_declared() -> None:
    kinds = _kinds_in_source()
    assert "low-branch" in kinds
    assert kinds - KINDS == set()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_finding_command_prints_the_page_of_a_kind(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    entry = Entry(kind=kind, severity=Severity.ERROR, module="", site="", message="it is wrong")
    program, *arguments = entry.page.split()
    assert program == "pytest-amp"
    assert cli.main(arguments) == 0
    assert capsys.readouterr().out == (PAGES / f"{kind}.md").read_text(encoding="utf-8")


def test_finding_command_lists_all_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["finding"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == KINDS
    assert any(re.fullmatch(r"low-norm +statistics of a norm are low", line) for line in lines)


def test_finding_command_suggests_similar_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["finding", "low-nrm"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("pytest-amp: no finding is called 'low-nrm'; near: low-norm")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_page_of_a_kind_has_the_required_sections(kind: str) -> None:
    text = (PAGES / f"{kind}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# `{kind}`: ")
    for title in ("Why it matters", "How to mend it", "When it is fine"):
        assert f"\n## {title}\n" in text
    assert f"({kind}.md)" in (PAGES / "index.md").read_text(encoding="utf-8")
