"""The site is built without a warning, and every page is in its navigation."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import ROOT


def test_navigation_has_each_page_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"[\w./-]+\.md", text.partition("nav:")[2])
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(pages)


#: Pages of results alone: comparisons of records, and the study of transformers.
REPORTS = ("lab/examples/", "lab/transformers/")


def test_pages_name_their_readers_in_the_first_sentence() -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix(): path for path in (ROOT / "docs").rglob("*.md")}
    first = {
        name: re.sub(r"<!--.*?-->|^# .*", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE).lstrip()
        for name, path in pages.items()
        if not name.startswith(("findings/", *REPORTS))
    }
    assert len(first) > 50
    assert [name for name, text in first.items() if not re.match(r"For [^.]*?[:,]", text)] == []


def test_site_builds_without_warnings(tmp_path: Path) -> None:
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is in the dependency group docs, and ci.yml builds the site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "explanation" / "folklore.html").read_text(encoding="utf-8")
    assert "../suites/" not in page  # files outside of the site are shown as text
