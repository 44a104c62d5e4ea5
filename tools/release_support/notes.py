"""Reasons for changes: the release notes and torch's own documentation of a release."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

#: Pull request, as release notes name it: ``(#191142)`` or its address.
_PULL = re.compile(r"(?:#|pytorch/pytorch/(?:pull|issues)/)(?P<number>[0-9]{4,})\b")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Words that are not names of operators.
_COMMON = frozenset({"nn", "functional", "torch", "ops", "aten", "default", "linalg", "special", "test", "summary"})


@dataclass(frozen=True)
class Note:
    """One line of release notes, and the pull request that it names."""

    text: str
    source: str


def read_notes(path: Path) -> list[Note]:
    """Return the lines of release notes that name a pull request, without markup."""
    notes = []
    for line in path.read_text(encoding="utf-8").splitlines():
        result = _PULL.search(line)
        if result is not None:
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line)
            text = _PULL.sub("", text).replace("()", "").strip(" -*\t,;.")
            notes.append(Note(text.replace("`", ""), f"pytorch/pytorch#{result['number']}"))
    return notes


def note_of(name: str, notes: Iterable[Note]) -> Note | None:
    """Return the only note that names an operator, a module or an entry called ``name``; None if several do."""
    words = [word for word in _WORD.findall(name) if word.lower() not in _COMMON and len(word) > 3]
    matching = [note for note in notes if words and set(words) <= set(_WORD.findall(note.text))]
    return matching[0] if len(matching) == 1 else None


def documented(package: Path, release: str) -> Iterator[str]:
    """Yield each place in torch's sources whose documentation says that ``release`` changed it: file, line, text."""
    sign = re.compile(rf"\.\. version(?:changed|added):: {re.escape(release)}\b")
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if f":: {release}" not in text:
            continue
        lines = text.splitlines()
        for number, line in enumerate(lines):
            if sign.search(line):
                joined = " ".join(line.strip() for line in lines[number + 1 : number + 4])
                yield f"{path.relative_to(package.parent)}:{number + 1}: {' '.join(joined.split())[:160]}"
