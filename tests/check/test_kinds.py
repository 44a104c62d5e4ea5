"""Kinds of findings have a page each, and pages a kind each."""

from __future__ import annotations

import ast
import re

import pytest

from pytest_amp.check.kinds import KINDS
from tests.project import ROOT

PAGES = ROOT / "docs" / "findings"
#: Pattern of a kind in source code.
KIND = re.compile(r"[a-z]+(-[a-z]+)+")


def _kinds_in_source() -> set[str]:
    """Return the names of kinds among the text of ``pytest_amp.check``."""
    files = (ROOT / "pytest_amp" / "check").glob("*.py")
    texts = {
        node.value
        for path in files
        if path.name != "kinds.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {text for text in texts if KIND.fullmatch(text)}


def test_each_kind_has_a_page_and_each_page_a_kind() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} - {"index", "compared"} == KINDS


def test_kinds_of_the_checks_are_known() -> None:
    kinds = _kinds_in_source()
    assert "low-branch" in kinds
    assert kinds - KINDS == set()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_page_says_what_why_how_and_when(kind: str) -> None:
    text = (PAGES / f"{kind}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# `{kind}`: ")
    for title in ("Why it matters", "How to mend it", "When it is fine"):
        assert f"\n## {title}\n" in text
    assert f"({kind}.md)" in (PAGES / "index.md").read_text(encoding="utf-8")
