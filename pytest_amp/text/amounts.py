"""Amounts in messages."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return a number of things: ``1 test``, ``2 tests``."""
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"
