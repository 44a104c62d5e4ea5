"""Header of a run, and the block at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_amp.record import Better, Observation, Verdict, judged, keys_of
from pytest_amp.report.causes import Standing, causes, remark
from pytest_amp.report.cells import short, valued
from pytest_amp.report.difference import of_one_seed, of_other_revision
from pytest_amp.report.reasons import reasons
from pytest_amp.run.session import installed_torch
from pytest_amp.run.tally import most_common
from pytest_amp.text.quoted import printable

if TYPE_CHECKING:
    from pytest_amp.known.rows import Known
    from pytest_amp.run.session import AmpSession

#: Maximum number of listed changed keys, reasons of skips, and notes.
LISTED = 20


def header(session: AmpSession) -> list[str]:
    """Return each value and its source, without importing torch."""
    asked = session.asked
    values = {
        "amp_device": ",".join(asked.device),
        "amp_dtype": ",".join(asked.dtype),
        "amp_baseline": asked.baseline,
        "amp_record": asked.record,
        "amp_speed": asked.speed or "auto",
        "amp_report": ",".join(f"{report.format}:{report.path}" for report in asked.report) or None,
        "amp_allow_missing": ",".join(sorted(asked.allow_missing)) or None,
        "amp_strict": asked.strict,
        "amp_accept": asked.accept,
        "amp_known": f"{len(asked.known)} faults" if asked.known else None,
        "amp_floors": f"{len(asked.floors)} floors" if asked.floors else None,
        "amp_tier": asked.tier,
        "amp_tolerance_scale": asked.tolerance_scale,
        "amp_seed": asked.seed,
        "amp_timeout": ",".join(f"{seconds:g}" for seconds in asked.timeout),
    }
    always = ("amp_device", "amp_dtype", "amp_speed")
    shown = [
        f"{name.removeprefix('amp_')} {value} ({asked.sources[name]})"
        for name, value in values.items()
        if name in always or asked.sources[name] != "default"
    ]
    return [f"amp: torch {installed_torch()}, {', '.join(shown)}"]


def found(session: AmpSession) -> list[str]:
    """Return the devices that a run in one process found, and whether speed is timed."""
    lines = []
    for key in dict.fromkeys(target.device.key for target in session.targets):
        there = [t for t in session.targets if t.device.key == key and t.missing is None]
        missing = [t for t in session.targets if t.device.key == key and t.missing is not None]
        if there:
            lines.append(f"amp: {key}: {there[0].device.describe()}; {', '.join(t.precision.name for t in there)}")
        lines += [f"amp: {target.id}: {target.missing}" for target in missing]
    if session.speed_reason is not None:
        lines.append(f"amp: speed {session.speed_reason}")
    return lines


def summarize(session: AmpSession, terminal: pytest.TerminalReporter) -> None:
    """Print executed tests, tests not run, differences, the worst margins, files, and why the run is red."""
    lines = [*_ran(session), *_not_run(session), *_compared(session), *_margins(session)]
    if session.accepted is not None:
        lines.append(f"accepted  {_differences(session.accepted)} now in {session.asked.baseline}")
    lines += [f"known     {line}" for line in lived_with(session)]
    lines += _causes(session)
    lines += [f"wrote     {path}" for path in session.written]
    lines += _notes(session)
    if not lines and not session.problems:
        return
    terminal.section("amp", sep="=")
    for line in lines:
        terminal.line(printable(line))
    for problem in session.problems:
        terminal.line(f"RED       {printable(problem)}", red=True, bold=True)


def _notes(session: AmpSession) -> list[str]:
    """Return the notes, which make no run red; the reports list all of them."""
    notes = [*session.notes, *_earlier_times(session)]
    more = [f"          and {len(notes) - LISTED} more notes"] * (len(notes) > LISTED)
    return [f"note      {note}" for note in notes[:LISTED]] + more


def _causes(session: AmpSession) -> list[str]:
    """Return a line for each cause of failures, if one unites several or the torch is newer than the data."""
    found, newer = causes(session), remark()
    lines = []
    if newer is not None and (session.tally.outcomes or session.problems):
        lines.append(f"torch     {newer}")
    is_fixed = any(cause.standing is Standing.FIXED for cause in found)
    if newer is None and not is_fixed and all(len(cause.tests) == 1 for cause in found):
        return lines
    for cause in found[:LISTED]:
        because = "" if cause.reason is None else f" because {cause.reason}"
        lines.append(f"cause     {cause.standing.value}: {cause.count}: {cause.what}{because}")
        lines += [f"          {cause.bisect}"] * (cause.bisect is not None)
    return lines + [f"          and {len(found) - LISTED} more causes"] * (len(found) > LISTED)


def _earlier_times(session: AmpSession) -> Iterator[str]:
    """Yield a note if pytest-benchmark's earlier times come from another torch or device than this run's."""
    now = _times_depend_on(session.provenance)
    for earlier in session.earlier_times if session.active else ():
        was = _times_depend_on(earlier)
        differs = [f"{name} {was[name]} (now {now[name]})" for name in was if name in now and was[name] != now[name]]
        if differs:
            yield f"pytest-benchmark compares with times from elsewhere: {', '.join(differs)}"


def _times_depend_on(provenance: Mapping[str, Any]) -> dict[str, str]:
    """Return the provenance that times depend on, by name; each device has its own entries."""
    devices = provenance.get("devices") or {}
    found = {f"{key} {name}": value for key, each in devices.items() for name, value in each.items()}
    return {name: str(value) for name, value in {"torch": provenance.get("torch"), **found}.items()}


def _differences(count: int) -> str:
    return "1 difference is" if count == 1 else f"{count} differences are"


def _ran(session: AmpSession) -> list[str]:
    lines: dict[str, list[str]] = {}
    for (target, family), counts in sorted(session.tally.outcomes.items()):
        lines.setdefault(target, []).append(f"{family} {_counts(counts)}")
    width = max((len(target) for target in lines), default=0)
    return [f"ran       {target:<{width}}  {', '.join(families)}" for target, families in lines.items()]


def _counts(counts: Counter[str]) -> str:
    words = {"passed": "", "failed": " failed", "error": " error", "xfailed": " xfailed"}
    words |= {"fixed": " fixed upstream", "inconclusive": " inconclusive", "skipped": " skipped"}
    parts = [f"{counts[name]}{word}" for name, word in words.items() if counts[name]]
    return " + ".join(parts) if parts else "0"


def _not_run(session: AmpSession) -> list[str]:
    lines = [f"not run   {count} ({reason})" for reason, count in sorted(session.deselected.items())]
    if session.speed_reason is not None and session.speed_reason.startswith("off"):
        lines.append(f"speed     {session.speed_reason}")
    skips: Counter[str] = Counter()
    for counted in session.tally.reasons.values():
        skips.update(counted)
    lines += [f"skipped   {count} ({reason})" for reason, count in most_common(skips)[:LISTED]]
    if len(skips) > LISTED:
        lines.append(f"          and {len(skips) - LISTED} more reasons")
    modules = sorted(session.skipped_modules.items())
    return lines + [f"skipped   all of {name} ({reason})" for name, (_, reason) in modules]


def _compared(session: AmpSession) -> list[str]:
    baseline = session.baseline
    if baseline is None:
        return [f"baseline  {session.asked.baseline} is missing, as --amp-allow-missing allows"] * bool(
            session.asked.baseline
        )
    observed = list(session.observed())
    differences = session.differences()
    groups = {verdict: differences[verdict] for verdict in (*_MOVED, Verdict.GONE)}
    rest = [o for o in observed if o.verdict not in _MOVED]
    same = sum(judged(o) for o in rest)
    whole = "" if baseline.complete else ", of a run that did not end green or whole"
    moved = "".join(f", {len(group)} {verdict.value}" for verdict, group in groups.items() if group)
    unjudged = len(rest) - same
    counts = f"{same} same{moved}" + f"; {unjudged} only recorded" * bool(unjudged)
    lines = [
        f"baseline  {session.asked.baseline} (torch {baseline.provenance.get('torch', 'unknown')}{whole}): {counts}"
    ]
    devices = dict.fromkeys(o.target[0] for o in observed)
    unfair = dict.fromkeys(reason for device in devices if (reason := session.unfair(device)) is not None)
    lines += [f"          {reason}: numbers that moved are inconclusive" for reason in unfair]
    lines += [f"          {line}" for line in of_other_revision(session.revised)]
    lines += [f"          {line}" for line in of_one_seed({"the baseline": baseline})]
    why = reasons_of(session, [each for group in groups.values() for each in group])
    for verdict, group in groups.items():
        for o in group[:LISTED]:
            lines.append(f"{verdict.value:<9} {o.key}: {_moved(verdict, o)}")
            if o.key in why:
                lines.append(f"          because {why[o.key]}")
    hidden = sum(max(0, len(group) - LISTED) for group in groups.values())
    return [*lines, f"          and {hidden} more"] if hidden else lines


#: Verdicts of observations that moved, worst first; a new or improved one fails nothing.
_MOVED = (Verdict.REGRESSED, Verdict.CHANGED, Verdict.INCONCLUSIVE, Verdict.OBSERVED, Verdict.NEW, Verdict.IMPROVED)


def reasons_of(session: AmpSession, observations: Iterable[Observation]) -> dict[str, str]:
    """Return the known reasons of differences from the baseline, by key."""
    baseline = session.baseline
    return {} if baseline is None else reasons(observations, baseline.provenance.get("torch"), installed_torch())


def _moved(verdict: Verdict, observation: Observation) -> str:
    if verdict is Verdict.NEW:
        return valued(observation)
    if verdict is Verdict.GONE:  # the baseline's own observation
        return f"was {short(observation.value)}"
    return f"{short(observation.baseline)} -> {valued(observation)}"


def lived_with(session: AmpSession) -> list[str]:
    """Return a line for each fault of --amp-known: how often it failed, or that none of its tests ran."""
    lines = []
    for row in session.asked.known:
        counts = session.tally.known.get(row.name)
        count = f"{counts['xfailed']} failed" if counts else f"nothing of it ran{_unlike(session, row)}"
        lines.append(f"{row.name}: {count}: {row.reason} ({row.report})")
    return lines


def _unlike(session: AmpSession, known: Known) -> str:
    """Return a note on a fault that no observation matched, which may be misspelt. A record has no keys of tests."""
    had = (
        session.baseline is None
        or any("::test" in key for key in known.keys)
        or any(known.matches(key) for each in session.baseline.observations for key in keys_of(each))
    )
    return "" if had else ", and the baseline has no such key"


def _margins(session: AmpSession) -> list[str]:
    """Return the observation closest to its limit of each family; one beyond it has failed, or is known to."""
    worst: dict[str, tuple[float, str]] = {}
    for o in session.observed():
        if o.allowed and o.better is not Better.HIGHER and isinstance(o.value, (int, float)) and o.value <= o.allowed:
            worst[o.family] = max(worst.get(o.family, (0.0, "")), (o.value / o.allowed, o.key))
    return [
        f"margin    {family}: {share:.0%} of what is allowed, {key}" for family, (share, key) in sorted(worst.items())
    ]
