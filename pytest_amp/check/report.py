"""Report of ``amp.check``: one page with the checks, findings, dtypes and costs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_amp.check.entry import Entry, order
from pytest_amp.check.failure import counted
from pytest_amp.text.amounts import counted as counted_of
from pytest_amp.text.table import as_table, in_bytes

#: Maximum number of modules whose dtypes are listed one by one.
LISTED = 24
#: Maximum number of warnings in the note of a green run.
NOTED = 3


@dataclass(frozen=True)
class CheckLine:
    """Result of one check.

    ``verdict`` is ``pass``, ``red``, ``warning``, ``not run`` or ``cannot tell``. ``margin`` is the largest share of a
    limit that the results use; None if the check has no limit. ``detail`` lists what was examined, or the reason why
    nothing was.
    """

    check: str
    verdict: str
    margin: float | None
    detail: str
    seconds: float


@dataclass(frozen=True)
class Cost:
    """Cost of one step: casts, the bytes that they move, bytes saved for backward, and their ratio to float32's."""

    casts: int
    cast_bytes: int
    saved_bytes: int | None
    saved_ratio: float | None

    def __str__(self) -> str:
        """Return the cost in one line."""
        saved = "" if self.saved_bytes is None else f", {in_bytes(self.saved_bytes)} kept for backward"
        ratio = "" if self.saved_ratio is None else f" ({self.saved_ratio:.2f} of float32)"
        return f"{counted_of(self.casts, 'cast')}, {in_bytes(self.cast_bytes)} moved by them{saved}{ratio}"


@dataclass(frozen=True)
class Report:
    """Result of ``amp.check``, which prints as one page.

    ``entries`` are the findings and failures, without those that ``expect=`` accepts, which are in ``accepted``.
    ``dtypes`` maps modules to the dtypes of their outputs.
    """

    title: str
    checks: tuple[CheckLine, ...]
    entries: tuple[Entry, ...]
    accepted: tuple[Entry, ...]
    dtypes: Mapping[str, str]
    cost: Cost | None

    @property
    def errors(self) -> tuple[Entry, ...]:
        """Entries that fail a test."""
        return tuple(entry for entry in self.entries if entry.is_error)

    @property
    def warnings(self) -> tuple[Entry, ...]:
        """Entries that fail a test only with ``strict=True``."""
        return tuple(entry for entry in self.entries if not entry.is_error)

    def warnings_line(self, name: str) -> str:
        """Return the warnings of the case ``name`` in one line, as a note of a green run."""
        warnings = sorted(self.warnings, key=order)
        places = [f"{entry.kind} {entry.place}".rstrip() for entry in warnings[:NOTED]]
        more = [f"{len(warnings) - NOTED} more"] if len(warnings) > NOTED else []
        return (
            f"{name}: {counted(warnings)}: {', '.join(places + more)}; strict=True makes the test red, and "
            "amp.check(...).print() with pytest -s shows the report"
        )

    def __str__(self) -> str:
        """Return the page."""
        return "\n".join(self._lines())

    def print(self) -> None:
        """Write the page to standard output."""
        sys.stdout.write(f"{self}\n")

    def _lines(self) -> Iterator[str]:
        yield f"{self.title}: {counted(self.entries)}"
        yield ""
        rows = [
            (line.check, line.verdict, _share(line.margin), f"{line.seconds:.1f} s", line.detail)
            for line in self.checks
        ]
        yield as_table(("check", "verdict", "of limit", "time", ""), rows)
        for title, entries in (("findings", self.entries), ("accepted by expect=", self.accepted)):
            if entries:
                yield ""
                yield f"{title}"
                for entry in sorted(entries, key=order):
                    yield from (f"  {line}" for line in entry.lines())
        if self.dtypes:
            yield ""
            yield as_table(("module", "returns"), _grouped(self.dtypes))
        if self.cost is not None:
            yield ""
            yield f"cost: {self.cost}"


def _share(margin: float | None) -> str:
    return "" if margin is None else f"{margin:.0%}"


def _grouped(dtypes: Mapping[str, str]) -> list[tuple[str, str]]:
    rows = [(module or "the model", dtype) for module, dtype in dtypes.items()]
    if len(rows) <= LISTED:
        return rows
    by_dtype: dict[str, list[str]] = {}
    for module, dtype in rows:
        by_dtype.setdefault(dtype, []).append(module)
    grouped = []
    for dtype, modules in by_dtype.items():
        few = LISTED // len(by_dtype)
        more = f" and {len(modules) - few} more" if len(modules) > few else ""
        grouped += [(module, dtype) for module in modules[:few]]
        if more:
            grouped.append((more.strip(), dtype))
    return grouped
