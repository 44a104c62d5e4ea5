"""Observations of a check, for tests that do not run through the plugin."""

from __future__ import annotations

from typing import Any


class Noted(dict[str, Any]):
    """Values by name; ``facts`` has the further facts of each (kind, unit, allowed and so on), ``notes`` lines."""

    def __init__(self) -> None:
        super().__init__()
        self.facts: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []

    def observe(self, name: str, value: Any, /, **facts: Any) -> None:
        """Record a value as ``Amp.observe`` does, which accepts a name once."""
        assert name not in self, f"{name} is observed twice"
        self[name], self.facts[name] = value, facts

    def note(self, text: str) -> None:
        """Record a note as ``Amp._note`` does."""
        self.notes.append(text)


def unheeded(_name: str, _value: object = None, /, **_facts: object) -> None:
    """Ignore observations and notes."""
