"""Comparison of two records as text, Markdown or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import groupby

from pytest_amp.record import ERROR_RATIO, ORDER, Difference, Observation, Record, Verdict, finite
from pytest_amp.report.cells import (
    DIFFERENCE_ROWS,
    TITLES,
    and_more,
    by_reason,
    cause_of,
    legend,
    named,
    short,
    tables,
    times,
    told_commands,
    valued,
)
from pytest_amp.report.commands import of_difference
from pytest_amp.report.inline import code, plain
from pytest_amp.report.newer import newer_than_known
from pytest_amp.report.reasons import reasons
from pytest_amp.text.amounts import counted
from pytest_amp.text.quoted import printable


def why(difference: Difference) -> dict[str, str]:
    """Return the known reasons, by key."""
    return reasons(
        difference.observations, difference.old.provenance.get("torch"), difference.new.provenance.get("torch")
    )


def as_text(difference: Difference) -> str:
    """Format for a terminal: the two runs, a line of counts, and each difference, worst first."""
    lines = [f"old  {run(difference.old.provenance)}", f"new  {run(difference.new.provenance)}"]
    lines += [f"     {name}: {short(before)} -> {short(now)}" for name, before, now in difference.provenance()]
    lines += [f"     {note}" for note in remarks(difference)]
    lines += ["", counts(difference)]
    known, commands = why(difference), of_difference(difference)
    for verdict in ORDER:
        observations = difference.of(verdict)
        if observations:
            lines += ["", f"{TITLES[verdict]} ({len(observations)})"]
            lines += [f"  {line}" for line in _listed(observations, known, commands)]
    return "\n".join([*map(printable, lines), ""])


def as_markdown(difference: Difference) -> str:
    """Format for a job page: failing differences first and open, the remaining ones folded."""
    lines = [
        f"### {plain(run(difference.old.provenance))} → {plain(run(difference.new.provenance))}",
        "",
        counts(difference),
        "",
        *(
            f"- {plain(name)}: {code(short(before))} → {code(short(now))}"
            for name, before, now in difference.provenance()
        ),
        *(f"- {plain(note)}" for note in remarks(difference)),
    ]
    lines += tables({verdict: difference.of(verdict) for verdict in ORDER}, why(difference), of_difference(difference))
    return "\n".join([*lines, ""])


def as_json(difference: Difference) -> str:
    """Format as JSON: the counts, the provenance of both, and each difference as an observation."""
    return json.dumps(as_data(difference), indent=1, allow_nan=False) + "\n"


def as_data(difference: Difference) -> dict[str, object]:
    """Return the data that ``as_json`` writes."""
    known = why(difference)
    rows = []
    for observation in difference.observations:
        data = observation.to_json()
        rows.append(finite({**data, "why": known[observation.key]} if observation.key in known else data))
    return {
        "counts": {verdict.value: len(difference.of(verdict)) for verdict in ORDER},
        "same": difference.same,
        "unjudged": difference.unjudged,
        "not_run": difference.not_run,
        "not_run_before": difference.not_run_before,
        "failed_in_both": difference.failed_in_both,
        "unfair": difference.unfair,
        "incomparable": [finite(fact.to_json()) for fact in difference.incomparable],
        "gaps": {gap.value: [*lines] for gap, lines in difference.gaps.items()},
        "old": finite(dict(difference.old.provenance)),
        "new": finite(dict(difference.new.provenance)),
        "observations": rows,
    }


def counts(difference: Difference) -> str:
    """Return the number of equal observations, and of each verdict."""
    parts = [f"{difference.same} same"]
    parts += [f"{len(difference.of(verdict))} {verdict.value}" for verdict in ORDER if difference.of(verdict)]
    parts += [f"{counted(difference.failed_in_both, 'test')} failed in both"] * bool(difference.failed_in_both)
    parts += [f"{difference.unjudged} only recorded"] * bool(difference.unjudged)
    parts += [f"{difference.not_run} not run in the new one"] * bool(difference.not_run)
    parts += [f"{difference.not_run_before} not run in the old one"] * bool(difference.not_run_before)
    return ", ".join(parts)


def remarks(difference: Difference) -> list[str]:
    """Return ``notes`` and the legend of values."""
    return [*notes(difference), *legend(difference.observations)]


def notes(difference: Difference) -> list[str]:
    """Return the notes that a reader needs before the differences."""
    newer = newer_than_known(difference.new.provenance.get("torch"))
    lines = [f"{newer}: a difference without a reason may be a change that torch made on purpose"] * (newer is not None)
    lines += [
        f"{reason}: numbers that moved there are inconclusive" for reason in dict.fromkeys(difference.unfair.values())
    ]
    lines += [f"{gap.value}: {line}" for gap, rows in difference.gaps.items() for line in rows]
    return lines + of_one_seed({"the old record": difference.old, "the new record": difference.new})


def of_other_revision(revised: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return a note that the tests of these families differ from the baseline's; empty without any."""
    names = ", ".join(f"{family} ({' -> '.join(pair)})" for family, pair in sorted(revised.items()))
    return [f"tests changed since the baseline was recorded: {names}: what moved there may be theirs"] * bool(names)


def of_one_seed(records: Mapping[str, Record]) -> list[str]:
    """Return a note on records, by name, that lack the spread of errors; empty if all have it."""
    names = " and ".join(name for name, record in records.items() if record.is_of_one_seed)
    return [f"errors in {names} are of one seed: a fixed ratio of {ERROR_RATIO} decides, whatever their spread"] * bool(
        names
    )


def run(provenance: object) -> str:
    """Return a short description of a run."""
    get = provenance.get if isinstance(provenance, dict) else {}.get
    return printable(f"torch {short(get('torch', 'unknown'), 40)} ({str(get('date', 'no date'))[:10]})")


def _listed(observations: list[Observation], known: Mapping[str, str], commands: Mapping[str, str]) -> list[str]:
    """List observations; keys that differ only in device and dtype share a line, those with a reason come last."""
    lines = []
    for reason, of_reason in by_reason(observations, known).items():
        if reason:
            lines.append(f"because {reason}")
        indent = "  " if reason else ""
        by_cause: dict[tuple[str, ...], list[Observation]] = {}
        for observation in sorted(of_reason, key=_alike):
            by_cause.setdefault(cause_of(observation.verdict, observation), []).append(observation)
        groups = list(by_cause.values())
        for family, those in groupby(groups, key=lambda group: group[0].family):
            rows = list(those)
            for group in rows[:DIFFERENCE_ROWS]:
                places = ", ".join(dict.fromkeys(observation.place for observation in group))
                lines.append(f"{indent}{family}  {named(group)}: {_values(group[0])}  [{places}]")
            lines += [f"{indent}{family}  {line}" for line in and_more(rows, DIFFERENCE_ROWS)]
        if not reason:
            lines += [f"find the release: {command}" for command in told_commands(of_reason, commands)]
    return lines


def _alike(observation: Observation) -> tuple[str, str, str]:
    return observation.family, observation.name, _values(observation)


def _values(observation: Observation) -> str:
    of_test = observation.verdict in (Verdict.FAILED, Verdict.FIXED)
    if observation.verdict is Verdict.NEW or (of_test and observation.baseline is None):
        return valued(observation)
    if observation.verdict is Verdict.GONE:
        return f"was {short(observation.baseline)}"
    return f"{short(observation.baseline)} -> {valued(observation)}{times(observation)}"
