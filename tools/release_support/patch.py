"""One patch of several files, for ``git apply``."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path


def patch(root: Path, files: Mapping[str, str]) -> str:
    """Return the patch that gives each of ``files`` (by its path below ``root``) its text; empty if nothing changes."""
    return "".join(line for name, text in sorted(files.items()) for line in _of_file(root / name, name, text))


def _of_file(path: Path, name: str, text: str) -> Iterator[str]:
    before = path.read_text(encoding="utf-8") if path.is_file() else None
    if before == text:
        return
    yield f"diff --git a/{name} b/{name}\n"
    if before is None:
        yield "new file mode 100644\n"
    old = "/dev/null" if before is None else f"a/{name}"
    earlier, later = (before or "").splitlines(keepends=True), text.splitlines(keepends=True)
    for line in difflib.unified_diff(earlier, later, old, f"b/{name}"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
