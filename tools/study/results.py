"""The study's results on disk, one line for each cell, so that an interrupted run can be resumed."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tools.study.grid import SIZES, Cell

#: The result's name of a time: the device's own time of a captured step, or the step's time.
TIMES = {"device": "device_time", "step": "step_time"}


class ResultsError(ValueError):
    """Error for a file that has no results, or results of another machine; one line that names it."""


class Results:
    """The results in one file."""

    def __init__(self, path: Path, provenance: dict[str, str]) -> None:
        """Read existing results. Raises ResultsError for another card's or torch's, and for a file without results.

        The cell of an incomplete last line is measured again.
        """
        self.path, self.provenance = path, provenance
        self.found: dict[Cell, dict[str, Any]] = {}
        self.dates: set[str] = set()
        if path.exists():
            self._read()
        else:
            path.write_text(json.dumps(provenance) + "\n", encoding="utf-8")

    def _read(self) -> None:
        lines = self.path.read_text(encoding="utf-8").splitlines()
        try:
            head = json.loads(lines[0])
        except (ValueError, IndexError):
            raise ResultsError(f"{self.path}: no results of a study") from None
        if head != self.provenance:
            differs = [name for name in self.provenance if head.get(name) != self.provenance[name]]
            raise ResultsError(
                f"{self.path}: results of another machine or torch ({', '.join(differs)}); expected a new file"
            )
        whole = []
        for line in lines[1:]:
            try:
                data = json.loads(line)
                self.found[Cell(**data["cell"])] = data["result"]
                self.dates |= {data["date"]} if "date" in data else set()
            except (ValueError, KeyError, TypeError):
                continue
            whole.append(line)
        if len(whole) != len(lines) - 1 or not lines[-1].endswith("}"):
            self.path.write_text("\n".join([lines[0], *whole]) + "\n", encoding="utf-8")

    def add(self, cell: Cell, result: dict[str, Any]) -> None:
        """Add a result, and write it to disk immediately."""
        today = dt.datetime.now(tz=dt.timezone.utc).date().isoformat()
        self.found[cell] = result
        self.dates.add(today)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"cell": asdict(cell), "result": result, "date": today}) + "\n")

    def missing(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return the cells that are not measured yet, or whose measurement is in doubt."""
        return [cell for cell in cells if cell not in self.found or self.found[cell].get("doubts")]


def read(path: Path) -> Results:
    """Read results to be shown, from any machine. Raises ResultsError."""
    try:
        head = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    except (OSError, ValueError, IndexError):
        raise ResultsError(f"{path}: no results of a study") from None
    return Results(path, head)


def value(results: Results, cell: Cell, name: str) -> float | None:
    """Return a number of a cell; None if it was not measured, or did not fit into memory."""
    result = results.found.get(cell, {})
    number = result.get(name)
    return float(number) if isinstance(number, (int, float)) and not isinstance(number, bool) else None


def speedup(results: Results, cell: Cell, over: str, time: str) -> float | None:
    """Return the speedup of ``cell`` over the same cell in the precision ``over``."""
    name = TIMES[time]
    before, now = value(results, replace(cell, precision=over, warm_up="own"), name), value(results, cell, name)
    return before / now if before and now else None


def rows(results: Results) -> list[Cell]:
    """Return the measured cells, regardless of precision and warm-up, in the order of the grid."""
    observed = {replace(cell, precision="bf16", warm_up="own") for cell in results.found}
    sizes = list(SIZES)
    return sorted(observed, key=lambda c: (c.mode, c.attention, c.batch, sizes.index(c.size), c.context))
