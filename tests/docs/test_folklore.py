"""Folklore rows have a verdict, and link to an existing test or to a page with card and date."""

from __future__ import annotations

import ast
import re

from tests.project import ROOT

PAGE = ROOT / "docs" / "explanation" / "folklore.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| what is said")
]


def test_folklore_rows_have_a_verdict_and_a_link() -> None:
    assert len(ROWS) >= 20
    assert all(len(row) == 3 for row in ROWS)
    assert [row[0] for row in ROWS if "**" not in row[1]] == []
    assert [row[0] for row in ROWS if "](" not in row[2]] == []


def test_folklore_names_existing_tests() -> None:
    named = re.findall(r"\[`(test_\w+)`\]\(\.\./\.\./([\w/]+\.py)\)", PAGE.read_text(encoding="utf-8"))
    assert len(named) >= 12
    for name, path in named:
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (name, path)


def test_folklore_page_has_every_test_of_the_suite() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for path in sorted((ROOT / "suites" / "folklore").glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
        assert [name for name in names if f"`{name}`" not in text] == []


def test_folklore_figures_have_a_card_and_a_date() -> None:
    for row in ROWS:
        if re.search(r"\d+\.\d+ in device time|\(H|\(CPU", row[2]):
            assert re.search(r"\((CPU|H\d+)\w*, torch \d+\.\d+\.\d+\S*, \d{4}-\d\d-\d\d\)", row[2]), row
