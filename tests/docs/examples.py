"""Reports that the docs show as examples, of the records in the same folder: ``python -m tests.docs.examples``.

The HTML page of an upgrade has 90 to 200 kB and is not committed: ``pytest-amp diff --format=html`` makes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_amp.record import difference, read_record
from pytest_amp.report.differences import as_markdown
from tests.project import ROOT

FOLDER = ROOT / "docs" / "lab" / "examples"
RELEASES = [("2.13", "2.14"), ("2.6", "2.13")]


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each page with its expected text."""
    for old, new in RELEASES:
        before, after = (read_record(FOLDER / f"torch-{release}.json.gz") for release in (old, new))
        yield FOLDER / f"torch-{old}-to-{new}.md", as_markdown(difference(before, after))


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text, encoding="utf-8")
