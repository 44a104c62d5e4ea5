"""Page of a run in Markdown: for a job, or for a pull request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pytest_amp.record import Difference
from pytest_amp.report.causes import Cause, by_standing, causes, failed, remark
from pytest_amp.report.cells import PAGE_ROWS, TITLES, and_more, legend, tables
from pytest_amp.report.differences import of_one_seed, of_other_revision
from pytest_amp.report.faults import known_faults
from pytest_amp.report.findings import FindingText
from pytest_amp.report.inline import code, linked, plain
from pytest_amp.report.reasons import reasons_of
from pytest_amp.run.result import Run
from pytest_amp.text.amounts import counted

#: GitHub Actions drops a step's summary above 1 MiB; a page is cut so that it fits in addition to existing content.
LIMIT = 1024 * 1024
CUT = "\n\nThe rest of this page did not fit.\n"


def page(run: Run) -> str:
    """Return the page: executed tests, problems, and differences; failing parts are open, the rest is folded."""
    provenance = run.record.provenance
    lines = [f"### pytest-amp: {'red' if run.is_red else 'green'} on torch {plain(provenance.get('torch'))}", ""]
    lines += [f"- **{plain(problem)}**" for problem in run.problems]
    lines += [f"- {plain(note)}" for note in run.notes]
    lines += [f"- {plain(line)}" for line in [remark(run.torch)] if line is not None]
    lines += [f"- known: {linked(line)}" for line in known_faults(run)]
    if run.failures:
        lines += _causes(causes(run))
        lines += _failed(failed(run))
    if run.difference is not None:
        lines += _compared(run.difference, run.torch)
    lines += ["", "| device and dtype | family | ran |", "|---|---|---|"]
    for (target, family), counts in sorted(run.counts.items()):
        ran = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
        lines.append(f"| {target} | {plain(family)} | {ran} |")
    if run.deselected:
        lines += ["", *(f"- not run: {count} ({plain(reason)})" for reason, count in sorted(run.deselected.items()))]
    lines += ["", "<details><summary>where it ran</summary>", ""]
    lines += [f"- {plain(name)}: {code(value)}" for name, value in provenance.items()]
    return "\n".join([*lines, "", "</details>", ""])


#: Lines of a failure that a page shows for its cause.
PARTS = ("now", "likely", "rerun")


def _causes(causes: list[Cause]) -> Iterator[str]:
    """Yield each cause once, with its message, unexplained ones first."""
    for standing, group in by_standing(causes).items():
        tests = counted(sum(len(cause.tests) for cause in group), "test")
        yield from ("", f"**{standing.value} ({counted(len(group), 'cause')}, {tests})**", "")
        for cause in group[:PAGE_ROWS]:
            yield f"- **{linked(cause.what)}**: {plain(cause.count)}"
            yield from (f"  - {_finding(finding)}" for finding in cause.findings)
            parts = [(label, text) for label, text in cause.parts.items() if label not in PARTS[1:]]
            yield from (f"  - {plain(label)}: {linked(text)}" for label, text in parts)
            likely = cause.parts.get("likely") if cause.reason is None else cause.reason
            yield from (f"  - likely: {linked(text)}" for text in [likely] if text is not None)
            commands = {"rerun": cause.parts.get("rerun"), "bisect": cause.bisect}
            yield from (f"  - {label}: {code(text)}" for label, text in commands.items() if text is not None)
        yield from (f"- {line}" for line in and_more(group, PAGE_ROWS))


def _finding(finding: FindingText) -> str:
    """Return a finding with a link to the page of its kind."""
    place = f" {plain(finding.place)}" if finding.place else ""
    return f"{finding.severity} [{finding.kind}]({finding.page}){place}: {linked(finding.message)}"


def _failed(rows: list[tuple[str, str]]) -> list[str]:
    """Return the failed tests, each with the first line of its message, folded."""
    if not rows:
        return []
    lines = [f"| {code(test)} | {plain(why)} |" for test, why in rows[:PAGE_ROWS]]
    rest = [f"| {line} | |" for line in and_more(rows, PAGE_ROWS)]
    head = ["", f"<details><summary>failed ({len(rows)})</summary>", "", "| test | |", "|---|---|"]
    return [*head, *lines, *rest, "", "</details>"]


def _compared(difference: Difference, torch: str) -> list[str]:
    old = difference.old
    counts = [f"{len(group)} {TITLES[verdict]}" for verdict, group in difference.groups().items() if group]
    headline = f"Compared with torch {old.provenance.get('torch', 'unknown')}: {', '.join(counts) or 'no change'}"
    remarks = [
        *legend(difference.observations),
        *of_other_revision(difference.revised),
        *of_one_seed({"the baseline": old}),
    ]
    known = reasons_of(difference, torch)
    return ["", plain(headline), *(f"\n({plain(line)})" for line in remarks), *tables(difference.groups(), known)]


def append_to_job_summary(text: str, path: Path) -> None:
    """Append a page to the job's, cut to the size that GitHub Actions still accepts. Raises OSError."""
    room = LIMIT - path.stat().st_size - len(CUT.encode())
    data = text.encode("utf-8", errors="backslashreplace")
    if len(data) > room:
        data = data[: max(room, 0)].rsplit(b"\n", 1)[0] + CUT.encode()
    with path.open("ab") as file:
        file.write(data)
