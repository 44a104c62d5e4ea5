"""What a check observes, noted by a test that is none of the plugin's own."""

from __future__ import annotations

from typing import Any


class Noted(dict[str, Any]):
    """Values by name; ``facts`` has what was said of each besides (kind, unit, allowed and so on)."""

    def __init__(self) -> None:
        super().__init__()
        self.facts: dict[str, dict[str, Any]] = {}

    def observe(self, name: str, value: Any, /, **facts: Any) -> None:
        """As ``Amp.observe``, which takes a name once."""
        assert name not in self, f"{name} is observed twice"
        self[name], self.facts[name] = value, facts


def unheeded(_name: str, _value: object, /, **_facts: object) -> None:
    """Takes in what is observed, and keeps nothing."""
