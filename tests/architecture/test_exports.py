"""Exports of a package are used outside of it: unused functions and constants are not exported."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.project import ROOT

#: Folders that use the exports of the packages, or show them to users.
USERS = ("pytest_amp", "suites", "tests", "docs", "examples")
PACKAGES = sorted(
    path.parent for path in (ROOT / "pytest_amp").rglob("__init__.py") if "__all__" in path.read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def words() -> dict[Path, set[str]]:
    """Return the words of every file that may use an export."""
    files = [path for name in USERS for end in ("py", "md") for path in (ROOT / name).rglob(f"*.{end}")]
    return {path: set(re.findall(r"\w+", path.read_text(encoding="utf-8"))) for path in files}


def _offered(package: Path) -> list[str]:
    """Return ``__all__`` without types, which exist for the annotations of users."""
    for node in ast.parse((package / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return [name for name in names if name.isupper() or name.islower()]
    return []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_exports_are_used_outside_their_package(package: Path, words: dict[Path, set[str]]) -> None:
    beyond = set().union(*(word for path, word in words.items() if package not in path.parents))
    assert [name for name in _offered(package) if name not in beyond] == []


def test_packages_have_exports() -> None:
    assert len(PACKAGES) > 10
    assert any(map(_offered, PACKAGES))
