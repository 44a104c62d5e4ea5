"""Check that a tag is the version of the package and in the changelog: ``python release_version.py v0.1.0``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def problem(tag: str, project: str, module: str, changelog: str) -> str | None:
    """Return the mismatch in one line; None without one."""
    actual = re.search(r'^version = "(.+)"$', project, re.MULTILINE)
    inside = re.search(r'^__version__ = "(.+)"$', module, re.MULTILINE)
    if actual is None or inside is None:
        return "pyproject.toml or pytest_amp/__init__.py has no version"
    if not actual[1] == inside[1] == tag.removeprefix("v"):
        return f"the tag is {tag}, pyproject.toml says {actual[1]}, pytest_amp says {inside[1]}"
    if not re.search(rf"^## {re.escape(actual[1])}(?! \(unreleased\))", changelog, re.MULTILINE):
        return f"CHANGELOG.md has no section for {actual[1]}, or says that it is unreleased"
    return None


def main(arguments: list[str]) -> int:
    """One line and 1 where something does not fit."""
    texts = [
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("pyproject.toml", "pytest_amp/__init__.py", "CHANGELOG.md")
    ]
    actual = problem(arguments[0], *texts)
    if actual:
        sys.stderr.write(f"release_version: {actual}\n")
    return 1 if actual else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
