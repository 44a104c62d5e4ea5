"""Header of a run, and the block at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_amp.record import ORDER, Better, Difference, Observation, Verdict
from pytest_amp.report.causes import Standing, causes, remark
from pytest_amp.report.cells import SUMMARY_ROWS, and_more, short, valued
from pytest_amp.report.differences import of_one_seed, of_other_revision
from pytest_amp.report.faults import known_faults
from pytest_amp.report.reasons import reasons_of
from pytest_amp.run.result import Run, most_common
from pytest_amp.text.amounts import counted
from pytest_amp.text.quoted import printable

if TYPE_CHECKING:
    from collections import Counter

    from pytest_amp.config import AmpConfig
    from pytest_amp.run.targets import Target


def header(options: AmpConfig, torch: str) -> list[str]:
    """Return each value and its source; ``torch`` is the installed version."""
    values = {
        "amp_device": ",".join(options.device),
        "amp_dtype": ",".join(options.dtype),
        "amp_baseline": options.baseline,
        "amp_record": options.record,
        "amp_speed": options.speed or "auto",
        "amp_report": ",".join(f"{report.format}:{report.path}" for report in options.report) or None,
        "amp_allow_missing": ",".join(sorted(options.allow_missing)) or None,
        "amp_strict": options.strict,
        "amp_accept": options.accept,
        "amp_known": counted(len(options.known), "fault") if options.known else None,
        "amp_floors": counted(len(options.floors), "floor") if options.floors else None,
        "amp_tier": options.tier,
        "amp_tolerance_scale": options.tolerance_scale,
        "amp_seed": options.seed,
        "amp_timeout": ",".join(f"{seconds:g}" for seconds in options.timeout),
    }
    always = ("amp_device", "amp_dtype", "amp_speed")
    shown = [
        f"{name.removeprefix('amp_')} {value} ({options.sources[name]})"
        for name, value in values.items()
        if name in always or options.sources[name] != "default"
    ]
    return [f"amp: torch {torch}, {', '.join(shown)}"]


def devices(targets: Sequence[Target], speed: str | None) -> list[str]:
    """Return the devices of a run in one process, and whether speed is timed."""
    lines = []
    for key in dict.fromkeys(target.device.key for target in targets):
        available = [t for t in targets if t.device.key == key and t.missing is None]
        missing = [t for t in targets if t.device.key == key and t.missing is not None]
        if available:
            dtypes = ", ".join(target.precision.name for target in available)
            lines.append(f"amp: {key}: {available[0].device.describe()}; {dtypes}")
        lines += [f"amp: {target.id}: {target.missing}" for target in missing]
    if speed is not None:
        lines.append(f"amp: speed {speed}")
    return lines


def summarize(run: Run, terminal: pytest.TerminalReporter) -> None:
    """Print the lines of the summary, and the problems of the run."""
    lines = summary(run)
    if not lines and not run.problems:
        return
    terminal.section("amp", sep="=")
    for line in lines:
        terminal.line(printable(line))
    for problem in run.problems:
        terminal.line(f"RED       {printable(problem)}", red=True, bold=True)


def summary(run: Run) -> list[str]:
    """Return executed tests, tests not run, differences, the worst margins, files, causes and notes."""
    lines = [*_ran(run), *_not_run(run), *_compared(run), *_margins(run.record.observations)]
    if run.accepted is not None:
        differences = "1 difference is" if run.accepted == 1 else f"{run.accepted} differences are"
        lines.append(f"accepted  {differences} now in {run.baseline}")
    lines += [f"known     {line}" for line in known_faults(run)]
    lines += _causes(run)
    lines += [f"wrote     {path}" for path in run.written]
    return lines + _notes(run)


def _ran(run: Run) -> list[str]:
    lines: dict[str, list[str]] = {}
    for (target, family), counts in sorted(run.counts.items()):
        lines.setdefault(target, []).append(f"{family} {_counts(counts)}")
    width = max((len(target) for target in lines), default=0)
    return [f"ran       {target:<{width}}  {', '.join(families)}" for target, families in lines.items()]


def _counts(counts: Counter[str]) -> str:
    words = {"passed": "", "failed": " failed", "error": " error", "xfailed": " xfailed"}
    words |= {"fixed": " fixed upstream", "inconclusive": " inconclusive", "skipped": " skipped"}
    parts = [f"{counts[name]}{word}" for name, word in words.items() if counts[name]]
    return " + ".join(parts) if parts else "0"


def _not_run(run: Run) -> list[str]:
    lines = [f"not run   {count} ({reason})" for reason, count in sorted(run.deselected.items())]
    if run.speed is not None and run.speed.startswith("off"):
        lines.append(f"speed     {run.speed}")
    lines += [f"skipped   {count} ({reason})" for reason, count in most_common(run.skips)[:SUMMARY_ROWS]]
    lines += [f"          {line}" for line in and_more(run.skips, SUMMARY_ROWS, "reasons")]
    return lines + [f"skipped   all of {name} ({reason})" for name, reason in sorted(run.skipped_modules.items())]


def _compared(run: Run) -> list[str]:
    difference = run.difference
    if run.baseline is None:
        return []
    if difference is None:
        return [f"baseline  {run.baseline} is missing, as --amp-allow-missing allows"]
    old = difference.old
    whole = "" if old.complete else ", of a run that failed or was incomplete"
    groups = {verdict: group for verdict, group in difference.groups().items() if group}
    changed = "".join(f", {len(group)} {verdict.value}" for verdict, group in groups.items())
    unjudged = f"; {difference.unjudged} only recorded" if difference.unjudged else ""
    counts = f"{difference.same} same{changed}{unjudged}"
    lines = [f"baseline  {run.baseline} (torch {old.provenance.get('torch', 'unknown')}{whole}): {counts}"]
    unfair = dict.fromkeys(difference.unfair.values())
    lines += [f"          {reason}: numbers that moved are inconclusive" for reason in unfair]
    lines += [f"          {line}" for line in of_other_revision(difference.revised)]
    lines += [f"          {line}" for line in of_one_seed({"the baseline": old})]
    return [*lines, *_differences(difference, reasons_of(difference, run.torch))]


def _differences(difference: Difference, known: Mapping[str, str]) -> Iterator[str]:
    """Yield each difference, worst first, with its reason if it is in ``known``."""
    hidden = 0
    for verdict in ORDER:
        group = difference.of(verdict)
        hidden += max(0, len(group) - SUMMARY_ROWS)
        for observation in group[:SUMMARY_ROWS]:
            yield f"{verdict.value:<9} {observation.key}: {_values(observation)}"
            if observation.key in known:
                yield f"          because {known[observation.key]}"
    if hidden:
        yield f"          and {hidden} more"


def _values(observation: Observation) -> str:
    if observation.verdict is Verdict.NEW:
        return valued(observation)
    if observation.verdict is Verdict.GONE:
        return f"was {short(observation.baseline)}"
    return f"{short(observation.baseline)} -> {valued(observation)}"


def _margins(observations: Sequence[Observation]) -> list[str]:
    """Return, for each family, the observation closest to its limit; one beyond it has failed, or is a known fault."""
    worst: dict[str, tuple[float, str]] = {}
    for o in observations:
        if o.allowed and o.better is not Better.HIGHER and isinstance(o.value, (int, float)) and o.value <= o.allowed:
            worst[o.family] = max(worst.get(o.family, (0.0, "")), (o.value / o.allowed, o.key))
    return [
        f"closest   {family}: {share:.0%} of what is allowed, {key}" for family, (share, key) in sorted(worst.items())
    ]


def _causes(run: Run) -> list[str]:
    """Return a line for each cause of failures, if one has several tests or torch is newer than the package's data."""
    rows, newer = causes(run), remark(run.torch)
    lines = []
    if newer is not None and (run.counts or run.problems):
        lines.append(f"torch     {newer}")
    is_fixed = any(cause.standing is Standing.FIXED for cause in rows)
    if newer is None and not is_fixed and all(len(cause.tests) == 1 for cause in rows):
        return lines
    for cause in rows[:SUMMARY_ROWS]:
        because = "" if cause.reason is None else f" because {cause.reason}"
        lines.append(f"cause     {cause.standing.value}: {cause.count}: {cause.what}{because}")
        if cause.bisect is not None:
            lines.append(f"          {cause.bisect}")
    return lines + [f"          {line}" for line in and_more(rows, SUMMARY_ROWS, "causes")]


def _notes(run: Run) -> list[str]:
    """Return the notes, which do not fail the run; the reports list all of them."""
    notes = [*run.notes, *_earlier_times(run)]
    lines = [f"note      {note}" for note in notes[:SUMMARY_ROWS]]
    return lines + [f"          {line}" for line in and_more(notes, SUMMARY_ROWS, "notes")]


def _earlier_times(run: Run) -> Iterator[str]:
    """Yield a note if pytest-benchmark's earlier times come from another torch or device than this run's."""
    now = _times_depend_on(run.record.provenance)
    for earlier in run.earlier_times:
        before = _times_depend_on(earlier)
        shared = [name for name in before if name in now and before[name] != now[name]]
        differs = [f"{name} {before[name]} (now {now[name]})" for name in shared]
        if differs:
            yield f"pytest-benchmark compares with times from elsewhere: {', '.join(differs)}"


def _times_depend_on(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return the provenance that times depend on, by name; each device has its own entries."""
    devices = provenance.get("devices") or {}
    facts = {f"{key} {name}": value for key, device in devices.items() for name, value in device.items()}
    return {name: str(value) for name, value in {"torch": provenance.get("torch"), **facts}.items()}
