"""Two records compared, as text, Markdown or JSON."""

from __future__ import annotations

import json
from itertools import groupby

from pytest_amp.record import Difference, Observation, Verdict, finite
from pytest_amp.record.difference import ORDER
from pytest_amp.report.cells import TITLES, short, tables, times

#: Differences of one kind in one family that are listed one by one, in text.
LISTED = 25


def as_text(found: Difference) -> str:
    """For a terminal: the two runs, a line of counts, and each difference, worst first."""
    lines = [f"old  {_run(found.old.provenance)}", f"new  {_run(found.new.provenance)}"]
    lines += [f"     {name}: {short(before)} -> {short(now)}" for name, before, now in found.provenance()]
    lines += [f"     {reason}: errors there are not compared" for reason in found.unfair.values()]
    lines += [f"     the {name} run did not end green or whole" for name in incomplete(found)]
    lines += ["", counts(found)]
    for verdict in ORDER:
        observations = found.of(verdict)
        if observations:
            lines += ["", f"{TITLES[verdict]} ({len(observations)})"]
            lines += [f"  {line}" for line in _listed(observations)]
    return "\n".join([*lines, ""])


def as_markdown(found: Difference) -> str:
    """For a job page: what fails open, the rest folded."""
    lines = [
        f"### {_run(found.old.provenance)} → {_run(found.new.provenance)}",
        "",
        counts(found),
        "",
        *(f"- {name}: `{short(before)}` → `{short(now)}`" for name, before, now in found.provenance()),
        *(f"- {reason}: errors there are not compared" for reason in found.unfair.values()),
        *(f"- the {name} run did not end green or whole" for name in incomplete(found)),
    ]
    lines += tables({verdict: found.of(verdict) for verdict in ORDER})
    return "\n".join([*lines, ""])


def as_json(found: Difference) -> str:
    """For programs: the counts, the provenance of both, and each difference as an observation."""
    data = {
        "counts": {verdict.value: len(found.of(verdict)) for verdict in ORDER},
        "same": found.same,
        "unjudged": found.unjudged,
        "not_run": found.not_run,
        "unfair": found.unfair,
        "old": finite(dict(found.old.provenance)),
        "new": finite(dict(found.new.provenance)),
        "observations": [finite(observation.to_json()) for observation in found.observations],
    }
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def counts(found: Difference) -> str:
    """How many are the same, and how many became what."""
    parts = [f"{found.same} same"]
    parts += [f"{len(found.of(verdict))} {verdict.value}" for verdict in ORDER if found.of(verdict)]
    parts += [f"{found.unjudged} ratios, times and sizes not judged"] * bool(found.unjudged)
    parts += [f"{found.not_run} not run in the new one"] * bool(found.not_run)
    return ", ".join(parts)


def incomplete(found: Difference) -> list[str]:
    """Which of the two runs was red or cut short."""
    return [name for name, record in (("old", found.old), ("new", found.new)) if not record.complete]


def _run(provenance: object) -> str:
    get = provenance.get if isinstance(provenance, dict) else {}.get
    return f"torch {get('torch', 'unknown')} ({str(get('date', 'no date'))[:10]})"


def _listed(observations: list[Observation]) -> list[str]:
    """Keys that differ in nothing but device and dtype share a line."""
    groups = [list(group) for _, group in groupby(sorted(observations, key=_alike), key=_alike)]
    lines = []
    for family, those in groupby(groups, key=lambda group: group[0].family):
        each = list(those)
        for group in each[:LISTED]:
            places = ", ".join("-".join(observation.target) for observation in group)
            lines.append(f"{family}  {_name(group[0])}: {_values(group[0])}  [{places}]")
        lines += [f"{family}  and {len(each) - LISTED} more"] * (len(each) > LISTED)
    return lines


def _alike(observation: Observation) -> tuple[str, str, str]:
    return observation.family, _name(observation), _values(observation)


def _name(observation: Observation) -> str:
    return observation.key.split("/", 3)[3]


def _values(observation: Observation) -> str:
    if observation.verdict is Verdict.NEW:
        return short(observation.value)
    if observation.verdict is Verdict.GONE:
        return f"was {short(observation.baseline)}"
    return f"{short(observation.baseline)} -> {short(observation.value)}{times(observation)}"
