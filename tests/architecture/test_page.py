"""Page of the architecture: it has a row for each package, and names existing files."""

from __future__ import annotations

import re

from tests.architecture.test_imports import PACKAGE
from tests.project import ROOT

PAGE = "explanation/architecture.md"
TEXT = (ROOT / "docs" / PAGE).read_text(encoding="utf-8")
#: Packages at the top of pytest_amp.
PACKAGES = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
#: First cells of the rows of the table of rooms.
ROOMS = re.findall(r"^\| `(\w+)` \| \S", TEXT, re.MULTILINE)


def test_page_has_one_row_for_each_package() -> None:
    assert sorted(ROOMS) == sorted(PACKAGES)


def test_files_named_by_the_page_exist() -> None:
    files = re.findall(r"`([\w/]+\.py)`", TEXT)
    assert len(files) > 15
    assert [name for name in files if not (PACKAGE / name).is_file()] == []


def test_paths_of_the_page_name_each_module_once() -> None:
    """Check that no path leads a reader to a module twice."""
    for path in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:3]:
        modules = re.findall(r"`(run/\w+\.py)`", path)
        assert len(modules) == len(set(modules)) > 3


def test_page_is_linked() -> None:
    assert PAGE in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert PAGE in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
