"""Protocol by which a check records observations without knowing its test."""

from __future__ import annotations

from typing import Protocol

from pytest_amp.record.observation import Value


class Observe(Protocol):
    """Function that records one fact, as ``Amp.observe`` does: a test passes it to the functions behind the checks."""

    def __call__(  # noqa: PLR0913  # keywords of one fact
        self,
        name: str,
        value: Value,
        /,
        *,
        kind: str,
        unit: str | None = None,
        allowed: float | None = None,
        interval: tuple[float, float] | None = None,
        over_seeds: tuple[float, ...] | None = None,
        better: str | None = None,
        margin: float | None = None,
    ) -> object:
        """Record a fact; ``pytest_amp.amp.base.Bound.observe`` documents the keywords and exceptions."""
