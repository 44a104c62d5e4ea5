"""Quotes of foreign errors in messages: in one line, however many lines they have."""

from __future__ import annotations

import traceback
from collections.abc import Collection
from pathlib import Path

#: Maximum length of a quoted error.
MOST = 200


def quoted(error: BaseException, most: int = MOST) -> str:
    """Return an error's text in one line of at most ``most`` characters; a longer one ends in ``…``."""
    return _cut(str(error), most)


def quoted_with_type(error: BaseException, most: int = MOST) -> str:
    """Return an error's type and text in one line: ``RuntimeError: CUDA error: …``."""
    return _cut(f"{type(error).__name__}: {error}", most)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, whole; the name of its type if it has no text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def quoted_with_place(error: BaseException, libraries: Collection[Path], most: int = MOST) -> str:
    """Return an error's type, line and text; the line is the innermost one outside of ``libraries``.

    An example is ``ValueError (conftest.py:12): no such image``.
    """
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [
        frame for frame in frames if not any(Path(frame.filename).is_relative_to(folder) for folder in libraries)
    ]
    place = f" ({Path(user_frames[-1].filename).name}:{user_frames[-1].lineno})" if user_frames else ""
    return f"{type(error).__name__}{place}: {_cut(str(error), most)}"


def printable(text: str) -> str:
    """Return ``text`` in one line, with escapes for all but printable characters, so that no terminal is affected.

    A value of a foreign file may contain escape sequences, line ends, and marks that reverse the direction of text.
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(letter: str) -> str:
    if letter.isprintable():
        return letter
    return letter.encode("unicode_escape").decode("ascii")


def _cut(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
