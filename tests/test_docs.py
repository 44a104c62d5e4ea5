"""The documentation lists every option, fixture, marker, hook and suite, and its links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_amp import fixtures, hookspecs
from pytest_amp.config import OPTIONS
from pytest_amp.markers import AmpMarker
from tests.planted.table import names

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "suites" / "README.md", *(ROOT / "docs").glob("**/*.md")])


def test_reference_has_every_option() -> None:
    page = (REFERENCE / "options.md").read_text(encoding="utf-8")
    missing = [option.name for option in OPTIONS if not re.search(rf"^\| `{option.name}[`=]", page, re.MULTILINE)]
    assert missing == []


def test_reference_has_every_fixture_and_keyword_of_the_marker() -> None:
    page = (REFERENCE / "fixtures.md").read_text(encoding="utf-8")
    public = [name for name in sorted(fixtures.NAMES) if not name.startswith("_")]
    assert [name for name in public if f"| `{name}` |" not in page] == []
    assert [name for name in AmpMarker.__dataclass_fields__ if f"{name}=" not in page] == []


def test_reference_has_a_section_for_every_hook() -> None:
    page = (REFERENCE / "hooks.md").read_text(encoding="utf-8")
    hooks = [name for name in vars(hookspecs) if name.startswith("pytest_amp_")]
    assert len(hooks) >= 4
    assert [name for name in hooks if f"## `{name}(" not in page] == []


def test_page_of_the_suites_lists_every_file() -> None:
    page = (ROOT / "suites" / "README.md").read_text(encoding="utf-8")
    files = sorted((ROOT / "suites").glob("*/test_*.py"))
    assert len(files) > 20
    assert [path.name for path in files if f"| `{path.name}` |" not in page] == []
    listed = set(re.findall(r"^\| `(test_\w+\.py)` \|", page, re.MULTILINE))
    assert listed == {path.name for path in files}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    assert [link for link in links if "://" not in link and link and not (page.parent / link).exists()] == []


def test_planted_defects_named_in_the_docs_exist() -> None:
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    named = {name for text in texts for name in re.findall(r"--plant[ =]([a-z][a-z_0-9]+)", text)}
    assert named
    assert named <= names().keys()
