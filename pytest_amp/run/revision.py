"""Revisions of families of tests: digests of the tests and checks that produced the observations of a run.

Two versions of the suites may observe different values with the same torch. A record contains the revision of each
family, so that a change of the tests is not mistaken for a change of torch.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

#: Parts of this package that compute the observations of a family.
CHECKS = frozenset(
    {
        *("cases", "check", "compiled", "distributed", "fingerprint", "formats", "lint", "memory", "numerics", "rules"),
        *("scaffold", "scaler", "semantics", "speed", "training"),
    }
)
#: Files that determine observations: Python, rules and rounding models. Measured data (fingerprints, floors) does not.
_SOURCES = (".py", ".toml")
_IMPORT = re.compile(rb"^\s*(?:from|import) pytest_amp\.([a-z_0-9]+)", re.MULTILINE)
#: Import of a module of another family: ``from ..formats.numbers import own``.
_OF_ANOTHER = re.compile(rb"^\s*from \.\.([a-z_0-9.]+) import", re.MULTILINE)
_PACKAGE = Path(__file__).parent.parent


def revision_of(folder: Path) -> str:
    """Return eight hexadecimal digits of a family's sources: its package in ``folder``, and what it imports.

    It imports checks of this package, and parts that it shares with other families. Comments, blank lines and the
    location of the files do not count.
    """
    files = sorted(_with_shared(folder))
    parts = {name.decode() for file in files for name in _IMPORT.findall(file.read_bytes())}
    shared = (b"\n".join(_code_lines(file)) for file in files if folder not in file.parents)
    digests = [_digest(folder), *(hashlib.sha256(lines).hexdigest() for lines in shared)]
    digests += [_digest(_PACKAGE / part) for part in sorted(parts & CHECKS)]
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:8]


def _with_shared(folder: Path) -> Iterator[Path]:
    """Yield the sources of a family, and the modules of other families that they import."""
    sources = [*_sources(folder)]
    yield from sources
    names = {name.decode() for file in sources for name in _OF_ANOTHER.findall(file.read_bytes())}
    paths = (folder.parent / f"{name.replace('.', '/')}.py" for name in names)
    yield from (path for path in paths if path.is_file())


def _sources(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix in _SOURCES and path.is_file())


@functools.cache
def _digest(folder: Path) -> str:
    """Return a digest of the names and the lines of the sources in ``folder``."""
    digest = hashlib.sha256()
    for path in sorted(_sources(folder)):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(b"\n".join(_code_lines(path)) + b"\0")
    return digest.hexdigest()


def _code_lines(path: Path) -> Iterator[bytes]:
    """Return the lines of a source that are neither blank, nor a comment, nor of a docstring."""
    text = path.read_bytes()
    described = _docstring_lines(text) if path.suffix == ".py" else set()
    for number, line in enumerate(text.splitlines(), 1):
        if number not in described and line.strip() and not line.lstrip().startswith(b"#"):
            yield line.rstrip()


def _docstring_lines(text: bytes) -> set[int]:
    """Return the line numbers of docstrings; none for a file that does not parse, which pytest reports itself."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return set()
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, owners) and ast.get_docstring(node, clean=False) is not None:
            lines.update(range(node.body[0].lineno, (node.body[0].end_lineno or node.body[0].lineno) + 1))
    return lines
