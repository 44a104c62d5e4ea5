"""Table of several records, and a picture of the history of their numbers.

``python history.py FOLDER [PATTERN]`` reads every record in FOLDER, writes ``history.csv`` (a row for each fact of each
record) and ``history.svg`` (a line for each number whose key matches PATTERN, by date). It needs no torch.
"""

from __future__ import annotations

import csv
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from xml.sax.saxutils import escape

from pytest_amp import read_record

COLUMNS = ("date", "torch", "key", "kind", "value", "unit", "allowed", "verdict")
WIDTH, HEIGHT, EDGE = 900, 360, 40


def table(folder: Path) -> list[dict[str, object]]:
    """Return a row for each observation of each record, oldest record first."""
    rows: list[dict[str, object]] = []
    for record in map(read_record, sorted(folder.glob("*.json*"))):
        provenance = record.provenance
        rows += [
            {
                "date": str(provenance.get("date")),
                "torch": str(provenance.get("torch")),
                "key": observation.key,
                "kind": observation.kind.value,
                "value": observation.value,
                "unit": observation.unit,
                "allowed": observation.allowed,
                "verdict": observation.verdict.value,
            }
            for observation in record.observations
        ]
    return sorted(rows, key=lambda row: (str(row["date"]), str(row["key"])))


def drawn(rows: list[dict[str, object]], pattern: str) -> str:
    """Draw a line for each key that matches: its values by date, each as a share of its largest."""
    dates = sorted({str(row["date"]) for row in rows})
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        value = row["value"]
        if isinstance(value, (int, float)) and not isinstance(value, bool) and fnmatchcase(str(row["key"]), pattern):
            series.setdefault(str(row["key"]), []).append((dates.index(str(row["date"])), float(value)))
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">']
    for number, (key, points) in enumerate(sorted(series.items())):
        largest = max(abs(value) for _, value in points) or 1.0
        step = (WIDTH - 2 * EDGE) / max(len(dates) - 1, 1)
        places = " ".join(
            f"{EDGE + step * at:.1f},{HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * value / largest:.1f}"
            for at, value in points
        )
        colour = f"hsl({137 * number % 360} 70% 40%)"
        lines.append(
            f'<polyline points="{places}" fill="none" stroke="{colour}"><title>{escape(key)}</title></polyline>'
        )
        lines.append(f'<text x="{EDGE}" y="{14 + 13 * number}" font-size="11" fill="{colour}">{escape(key)}</text>')
    for at, date in enumerate(dates):
        x = EDGE + (WIDTH - 2 * EDGE) / max(len(dates) - 1, 1) * at
        lines.append(
            f'<text x="{x:.1f}" y="{HEIGHT - 12}" font-size="9" text-anchor="middle">{escape(date[:10])}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def main(folder: str, pattern: str = "*") -> None:
    """Write both files into the current folder."""
    rows = table(Path(folder))
    with Path("history.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    Path("history.svg").write_text(drawn(rows, pattern), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
