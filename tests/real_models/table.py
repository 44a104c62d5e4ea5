"""Table of docs/lab/real-models.md, generated from the JUnit files that ``make real-models`` writes.

``python -m tests.real_models.table LABEL=FILE,FILE …`` replaces the table on the page; LABEL heads the columns of its
files.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.project import ROOT
from tests.real_models.registry import MODELS

PAGE = ROOT / "docs" / "lab" / "real-models.md"
BEGIN, END = "<!-- python -m tests.real_models.table -->\n", "<!-- end of the table -->\n"
#: A test's name in JUnit: check, device, dtype and model.
NAME = re.compile(r"test_(?P<check>\w+)\[(?P<device>\w+)-(?P<dtype>\w+)-(?P<model>\w+)\]")
#: Labels of libraries for readers, if the package's name differs.
LABELS = {"torch": "own", "torch_geometric": "PyTorch Geometric", "monai": "MONAI"}


@dataclass(frozen=True)
class Result:
    """Outcome of one check of one model in one dtype; ``seconds`` is its time without setup."""

    model: str
    check: str
    dtype: str
    outcome: str
    seconds: float


def results(path: Path) -> list[Result]:
    """Return the results in a JUnit file; tests that are not checks of models are left out."""
    rows = []
    for case in ET.parse(path).iter("testcase"):  # noqa: S314  # pytest wrote it
        match = NAME.fullmatch(case.get("name", ""))
        if match is not None:
            outcome = next((child.tag for child in case if child.tag in {"failure", "error", "skipped"}), "passed")
            seconds = float(case.get("time", "0"))
            rows.append(Result(match["model"], match["check"], match["dtype"], outcome, seconds))
    return rows


def cell(rows: Iterable[Result]) -> str:
    """Return how many checks passed, and the names of those that did not."""
    ordered = list(rows)
    passed = [row for row in ordered if row.outcome == "passed"]
    trouble: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in ordered:
        if row.outcome != "passed":
            word = "skipped" if row.outcome == "skipped" else "red"
            trouble[word, row.check].append(row.dtype)
    parts = [f"{len(passed)} of {len(ordered)}"] if ordered else ["not run"]
    parts += [f"{check} {word} ({', '.join(dtypes)})" for (word, check), dtypes in trouble.items()]
    return "; ".join(parts)


def table(runs: Mapping[str, list[Result]]) -> str:
    """Return the table in Markdown: a row for each model, two columns for each run."""
    of_runs = [text for label in runs for text in (f"{label}: checks passed", "seconds")]
    head = ["model", "library", "what it has", *of_runs]
    lines = [head, ["---"] * 3 + ["---", "---:"] * len(runs)]
    for model in MODELS:
        line = [f"`{model.name}`", LABELS.get(model.library, model.library), model.shows]
        for rows in runs.values():
            rows_of_model = [row for row in rows if row.model == model.name]
            line += [cell(rows_of_model), f"{sum(row.seconds for row in rows_of_model):.0f}"]
        lines.append(line)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def written(page: str, text: str) -> str:
    """Return the page with a new table; raises ValueError if it has no place for one."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE.name} has no lines {BEGIN.strip()} and {END.strip()}")
    return f"{before}{begin}\n{text}\n{end}{after}"


def main(arguments: list[str]) -> None:
    """Write the table of the files that are named."""
    files = dict(argument.split("=", 1) for argument in arguments)
    runs = {label: [row for path in paths.split(",") for row in results(Path(path))] for label, paths in files.items()}
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), table(runs)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
