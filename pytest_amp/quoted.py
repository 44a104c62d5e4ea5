"""Errors of other people's code as messages quote them: in one line, however many they have."""

from __future__ import annotations

#: Letters of an error that a message has room for.
MOST = 200


def quoted(error: BaseException, most: int = MOST) -> str:
    """What an error says, in one line of at most ``most`` letters; one that is longer ends in ``…``."""
    return _cut(str(error), most)


def quoted_with_type(error: BaseException, most: int = MOST) -> str:
    """The same with its type before it: ``RuntimeError: CUDA error: …``."""
    return _cut(f"{type(error).__name__}: {error}", most)


def _cut(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"
