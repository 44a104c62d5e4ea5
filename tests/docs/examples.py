"""Reports that the docs show as examples, of the records beside them: ``python -m tests.docs.examples``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_amp.record import difference, read_record
from pytest_amp.report.difference import as_markdown
from pytest_amp.report.html import of_difference
from tests.project import ROOT

FOLDER = ROOT / "docs" / "lab" / "examples"
RELEASES = [("2.13", "2.14"), ("2.6", "2.13")]


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each page with its expected text."""
    for old, new in RELEASES:
        actual = difference(*(read_record(FOLDER / f"torch-{version}.json.gz") for version in (old, new)))
        name = f"torch-{old}-to-{new}"
        yield FOLDER / f"{name}.md", as_markdown(actual)
        yield FOLDER / f"{name}.html", of_difference(actual)


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text, encoding="utf-8")
