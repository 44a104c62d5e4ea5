"""Errors of other people's code as messages quote them: in one line, however many they have."""

from __future__ import annotations

#: Letters of an error that a message has room for.
MOST = 200


def quoted(error: BaseException, most: int = MOST) -> str:
    """What an error says, in one line of at most ``most`` letters."""
    return " ".join(str(error).split())[:most]


def quoted_with_type(error: BaseException, most: int = MOST) -> str:
    """The same with its type before it: ``RuntimeError: CUDA error: …``."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:most]
