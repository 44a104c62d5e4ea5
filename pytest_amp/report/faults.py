"""Known faults: those of torch as text and as a table of Markdown, and those of a run as lines of its reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pytest_amp.known.rows import Known
from pytest_amp.report.inline import code, linked
from pytest_amp.run.result import AcceptedFault, Run
from pytest_amp.text.quoted import printable


def as_text(rows: Iterable[Known]) -> str:
    """Format a block for each fault: its keys, and a line each for its reason, report, releases and limits."""
    return "\n\n".join("\n".join(_block(row)) for row in rows)


def _block(row: Known) -> Iterator[str]:
    yield from (printable(key) for key in row.keys)
    yield f"  reason    {printable(row.reason)}"
    yield f"  report    {printable(row.report)}"
    yield f"  releases  {row.releases}"
    limits = (
        ("devices", ", ".join(row.devices)),
        ("dtypes", ", ".join(row.dtypes)),
        ("machine", row.machine or ""),
        ("raises", ", ".join(row.raises)),
    )
    yield from (f"  {label:<8}  {text}" for label, text in limits if text)


def as_markdown(rows: Iterable[Known]) -> str:
    """Format a table with a row for each fault."""
    lines = ["| tests | fault | report | releases | where |", "|---|---|---|---|---|"]
    for row in rows:
        places = ", ".join([*row.devices, *row.dtypes, *([row.machine] if row.machine else [])]) or "everywhere"
        keys = "<br>".join(code(key) for key in row.keys)
        lines.append(f"| {keys} | {linked(row.reason)} | {linked(row.report)} | {row.releases} | {places} |")
    return "\n".join(lines) + "\n"


def known_faults(run: Run) -> list[str]:
    """Return a line for each fault of --amp-known: how often it failed, or that none of its tests ran."""
    return [f"{known.fault.name}: {_count(known)}: {known.fault.reason} ({known.fault.report})" for known in run.known]


def _count(known: AcceptedFault) -> str:
    if known.failed is not None:
        return f"{known.failed} failed"
    return "nothing of it ran" if known.may_exist else "nothing of it ran, and the baseline has no such key"
