"""How a check tells what it has observed, without knowing the test that it runs in."""

from __future__ import annotations

from typing import Protocol

from pytest_amp.record.observation import Value


class Observe(Protocol):
    """Records one fact, as ``Amp.observe`` does: a test hands that to the functions behind the checks."""

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
        """See ``pytest_amp.amp.base.Bound.observe``, which says what each keyword is and what is raised."""
