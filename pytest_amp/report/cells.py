"""Values and observations as the cells, rows and tables of a report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pytest_amp.record import FAILING, Kind, Observation, Value, Verdict
from pytest_amp.record.difference import ORDER

#: What observations that are not the same as before are called.
TITLES = {
    Verdict.REGRESSED: "errors that grew",
    Verdict.CHANGED: "changed",
    Verdict.GONE: "gone",
    Verdict.INCONCLUSIVE: "inconclusive",
    Verdict.NEW: "new",
    Verdict.IMPROVED: "errors that shrank",
}


def tables(groups: Mapping[Verdict, Sequence[Observation]]) -> list[str]:
    """A table of Markdown for each verdict that has observations, worst first; what fails stands open."""
    lines: list[str] = []
    for verdict in ORDER:
        group = groups.get(verdict, ())
        if not group:
            continue
        title = f"{TITLES[verdict]} ({len(group)})"
        rows = ["| key | before | now |", "|---|---|---|", *(changed_row(verdict, each) for each in group)]
        if verdict in FAILING:
            lines += ["", f"**{title}**", "", *rows]
        else:
            lines += ["", f"<details><summary>{title}</summary>", "", *rows, "", "</details>"]
    return lines


def changed_row(verdict: Verdict, observation: Observation) -> str:
    """A row of Markdown: key, before, now. What has gone is the earlier observation, or has its value as baseline."""
    was = observation.baseline if observation.verdict is verdict else observation.value
    before = "" if verdict is Verdict.NEW else short(was)
    now = "" if verdict is Verdict.GONE else f"{short(observation.value)}{times(observation)}"
    return f"| `{cell(observation.key)}` | {cell(before)} | {cell(now)} |"


def times(observation: Observation) -> str:
    """By how much an error grew or shrank."""
    before, now = observation.baseline, observation.value
    if observation.kind is not Kind.ERROR or not isinstance(before, (int, float)) or not isinstance(now, (int, float)):
        return ""
    return f" ({now / before:.2g} times)" if before else ""


def cell(text: object) -> str:
    """Text that ends neither a cell nor a row."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def short(value: Value) -> str:
    """A value in few characters."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:157]}…"
