"""Conclusion of ``amp.check``: the report, or one failure with all errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_amp.check.entry import Entry, order
from pytest_amp.check.expected import split
from pytest_amp.check.failure import CheckFailure, counted
from pytest_amp.check.plan import Plan
from pytest_amp.check.report import Report
from pytest_amp.failure import is_usage_error

__tracebackhide__ = is_usage_error


def conclude(plan: Plan, expect: Mapping[str, tuple[str, ...]], *, strict: bool) -> Report:
    """Return the report. Raises AmpFailure if an entry is an error, or with ``strict`` if there is any entry."""
    parted = split(_telling(plan.collector.entries), expect)
    entries = sorted(_folded(parted.counted), key=order)
    title = f"{plan.case.name} under {plan.where}"
    report = Report(title, tuple(plan.collector.lines), tuple(entries), parted.accepted, plan.dtypes, plan.cost)
    wrong = entries if strict else [entry for entry in entries if entry.is_error]
    if wrong:
        raise CheckFailure(
            f"{title}: {counted(entries)}",
            entries,
            now=plan.where.now(_checked(report)),
            accept=_accepting(wrong),
        )
    return report


def _telling(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries without duplicates, and without refusals if a failed check explains them."""
    first = list({(entry.message, entry.module, entry.site): entry for entry in reversed(entries)}.values())[::-1]
    if any(entry.is_error and not entry.is_refusal for entry in first):
        return [entry for entry in first if not entry.is_refusal]
    return first


def _folded(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries, with a failed check as a part of the linter's error of the same line, which explains it."""
    causes = {entry.site: entry for entry in entries if entry.is_error and entry.site and entry.check}
    effects: dict[str, list[tuple[str, str]]] = {site: [] for site in causes}
    remaining = []
    for entry in entries:
        if entry.is_failed_check and entry.site in causes:
            effects[entry.site].append(("also", f"{entry.kind}: {entry.message}"))
        else:
            remaining.append(entry)
    return [
        replace(entry, parts=(*entry.parts, *effects[entry.site])) if entry is causes.get(entry.site) else entry
        for entry in remaining
    ]


def _checked(report: Report) -> str:
    """Return which checks ran, by verdict."""
    by_verdict: dict[str, list[str]] = {}
    for line in report.checks:
        by_verdict.setdefault(line.verdict, []).append(line.check)
    return "; ".join(f"{verdict}: {', '.join(checks)}" for verdict, checks in by_verdict.items())


def _accepting(entries: Sequence[Entry]) -> str | None:
    """Return the argument that accepts those entries that are findings."""
    kinds: dict[str, list[str]] = {}
    for entry in entries:
        if not entry.kind.startswith(("check-", "expected-")) and entry.kind not in kinds.get(entry.module, []):
            kinds.setdefault(entry.module, []).append(entry.kind)
    return f"if it is meant, expect={kinds}" if kinds else None
