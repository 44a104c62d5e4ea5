"""What a check observes, noted by a test that is none of the plugin's own."""

from __future__ import annotations

from typing import Any


class Noted(dict[str, Any]):
    """Values by name; ``facts`` has what was said of each besides (kind, unit, allowed and so on), ``notes`` lines."""

    def __init__(self) -> None:
        super().__init__()
        self.facts: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []

    def observe(self, name: str, value: Any, /, **facts: Any) -> None:
        """As ``Amp.observe``, which takes a name once."""
        assert name not in self, f"{name} is observed twice"
        self[name], self.facts[name] = value, facts

    def note(self, text: str) -> None:
        """As ``Amp._note``."""
        self.notes.append(text)


def unheeded(_name: str, _value: object = None, /, **_facts: object) -> None:
    """Takes in what is observed or noted, and keeps nothing."""
