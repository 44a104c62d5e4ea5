"""Pages, the matrix of the continuous integration and the change log of a project that supports one more release."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from packaging.version import Version

from pytest_amp.fingerprint.data import Fingerprints
from pytest_amp.rules.lookup import as_markdown as rules_page
from pytest_amp.rules.spec import parse_spec
from tools.fingerprints.page import BEGIN, END, as_markdown

MATRIX = ".github/workflows/ci.yml"
CHANGELOG = "CHANGELOG.md"
FINGERPRINT = "docs/reference/fingerprint.md"
RULES = "docs/reference/rules.md"
UPGRADE = "docs/lab/upgrade.md"
_ENTRY = re.compile(r'^(?P<head> +- \{ python: "(?P<python>[0-9.]+)", torch: torch==)(?P<torch>[0-9.]+)(?P<tail>,.*)$')
#: Marks around the rows of ``docs/lab/upgrade.md``, one for each release that was supported by this tool.
ROWS, END_OF_ROWS = "<!-- supported releases -->", "<!-- end of supported releases -->"


def matrix(text: str, version: str) -> str:
    """Return the workflow with torch ``version`` on the newest Python; the release before keeps an entry.

    If only one entry has the release before, one for ``version`` is inserted after it.
    """
    entries = [(number, result) for number, line in enumerate(text.splitlines()) if (result := _ENTRY.match(line))]
    public = Version(version).public
    if not entries or any(entry["torch"] == public for _, entry in entries):
        return text
    newest = max(Version(entry["torch"]) for _, entry in entries)
    latest = [entry for entry in entries if Version(entry[1]["torch"]) == newest]
    number, result = max(latest, key=lambda entry: Version(entry[1]["python"]))
    lines, several = text.splitlines(), len(latest) > 1
    lines[number : number + 1] = [*([] if several else [lines[number]]), f"{result['head']}{public}{result['tail']}"]
    return "\n".join(lines) + "\n"


def changelog(text: str, release: str, last: str) -> str:
    """Return the change log with a line that ``release`` is supported, the first of the first list."""
    facts = f"the data has its rules, fingerprints and known faults, in addition to those of {last}"
    line = f"- torch {release} is supported: {facts}.\n"
    head, bullet, rest = text.partition("\n- ")
    return text if line in text else f"{head}\n{line.rstrip()}{bullet}{rest}"


def fingerprint_page(text: str, known: Fingerprints) -> str:
    """Return the page with the tables of the current fingerprints."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{as_markdown(known)}\n{END}{rest.partition(END)[2]}"


def rules(spec: str) -> str:
    """Return the page of the rules, made from the text of a spec."""
    return rules_page(parse_spec(spec))


def upgrade(text: str, old: str, new: str, counts: Mapping[str, int]) -> str:
    """Return the page of upgrades with a row for the step from ``old`` to ``new``."""
    if ROWS not in text:
        return text
    shown = ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "no difference"
    row = f"| {old} → {new} | {shown} |"
    before, _, rest = text.partition(END_OF_ROWS)
    return text if row in text else f"{before}{row}\n{END_OF_ROWS}{rest}"


def read(root: Path, name: str) -> str:
    """Return the text of a file of the checkout."""
    return (root / name).read_text(encoding="utf-8")
