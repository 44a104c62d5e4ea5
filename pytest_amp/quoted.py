"""Errors of other people's code as messages quote them: in one line, however many they have."""

from __future__ import annotations

import traceback
from collections.abc import Collection
from pathlib import Path

#: Letters of an error that a message has room for.
MOST = 200


def quoted(error: BaseException, most: int = MOST) -> str:
    """What an error says, in one line of at most ``most`` letters; one that is longer ends in ``…``."""
    return _cut(str(error), most)


def quoted_with_type(error: BaseException, most: int = MOST) -> str:
    """The same with its type before it: ``RuntimeError: CUDA error: …``."""
    return _cut(f"{type(error).__name__}: {error}", most)


def quoted_with_place(error: BaseException, libraries: Collection[Path], most: int = MOST) -> str:
    """The same with the line of the project that it comes from, which lies in none of ``libraries``.

    ``ValueError (conftest.py:12): no such image``.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not any(Path(each.filename).is_relative_to(folder) for folder in libraries)]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}{place}: {_cut(str(error), most)}"


def printable(text: str) -> str:
    """``text`` in one line in which nothing moves a terminal's cursor: escapes for all but printable characters.

    A value of a file that somebody else wrote may have escape sequences, ends of lines, and marks that reverse the
    direction of what follows.
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(letter: str) -> str:
    if letter.isprintable():
        return letter
    return letter.encode("unicode_escape").decode("ascii")


def _cut(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
