"""Differences between the records of two releases: rules, and changes with their known reasons."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_amp.record import Difference, Observation, Record, Verdict
from pytest_amp.report.cells import together, told_commands
from pytest_amp.report.commands import of_difference
from pytest_amp.report.differences import why
from pytest_amp.rules.spec import RuleName, load_spec
from tools.release_support.faults import split
from tools.release_support.notes import Note, note_of
from tools.release_support.spec_rows import RuleChanges, written

CHANGES = "pytest_amp/report/changes.toml"
#: Verdicts that are no change of earlier behaviour, or that carry no information.
_HARMLESS = (Verdict.OBSERVED, Verdict.IMPROVED, Verdict.INCONCLUSIVE, Verdict.FIXED, Verdict.FAILED)
_RULES = frozenset(name.value for name in RuleName if name is not RuleName.NONE)
_OF_A_SIZE = re.compile(r"/(?:entries|registered|new entries|gone entries|new operators|gone operators)$")


def rule_changes(record: Record) -> tuple[RuleChanges, list[str]]:
    """Return the differences between the rules of a record and the spec, and lines on those that no row can express."""
    spec, version = load_spec(), str(record.provenance["torch"])
    changes, unclear = RuleChanges(), []
    for (device, name), rules in sorted(_rules_of(record).items()):
        expected = spec.expected(device, version).get(f"aten::{name}" if "::" not in name else name)
        if len(rules) > 1 or not rules <= _RULES | {"none"}:
            if expected is None:
                unclear.append(f"the rule of {name} on {device} is {' or '.join(sorted(rules))}: no row can say so")
            continue
        (rule,) = rules
        if expected is None and rule != "none":
            changes.new.setdefault(device, {})[name] = rule
        elif expected is not None and rule not in ("none", expected.name.value) and expected.dtype is None:
            changes.changed.setdefault(device, {})[name] = rule
    for observation in record.observations:
        if observation.family == "rules" and observation.name == "gone operators":
            names = observation.value if isinstance(observation.value, list) else []
            device = observation.target[0].removeprefix("fake-")
            gone = changes.gone.setdefault(device, [])
            gone += [str(name) for name in names if name not in gone]
    return changes, unclear


def _rules_of(record: Record) -> dict[tuple[str, str], set[str]]:
    """Return the observed rules, by device type and overload (``softmax.int``)."""
    result: dict[tuple[str, str], set[str]] = {}
    for observation in record.observations:
        named = observation.family == "rules" and "::" in observation.name and "/" not in observation.name
        if named and observation.kind.value == "rule":
            device = observation.target[0].removeprefix("fake-")
            name = observation.name.removeprefix("aten::")
            result.setdefault((device, name), set()).add(str(observation.value))
    return result


@dataclass(frozen=True)
class Changes:
    """Differences between two releases: rows of ``changes.toml``, and lines with a command for unexplained ones."""

    rows: Sequence[Mapping[str, object]]
    unexplained: Sequence[str]
    counts: Mapping[str, int] = field(default_factory=dict)


def changes(result: Difference, notes: Sequence[Note]) -> Changes:
    """Return the changes of a release, each with its reason if torch's tests or its release notes give one."""
    release = ".".join(str(result.new.provenance["torch"]).split(".")[:2])
    known, commands = why(result), of_difference(result)
    mended = _mended(result.new)
    rows: dict[tuple[str, str], list[str]] = {}
    unexplained: list[Observation] = []
    for observation in result.observations:
        if observation.key in known or observation.verdict in _HARMLESS or _OF_A_SIZE.search(observation.key):
            continue
        reason = mended.get((observation.family, *observation.target, observation.test)) or _reason(
            observation, result, notes
        )
        if reason is None:
            unexplained.append(observation)
        else:
            keys = rows.setdefault(reason, [])
            key = f"{observation.family}/*/*/{observation.name}"
            keys += [key] * (key not in keys)
    return Changes(
        [{"since": release, "keys": keys, "text": text, "source": source} for (text, source), keys in rows.items()],
        _unexplained_lines(unexplained, commands),
        {verdict.value: len(result.of(verdict)) for verdict in Verdict if result.of(verdict)},
    )


def _mended(record: Record) -> dict[tuple[str, str, str, str], tuple[str, str]]:
    """Return by family, device, dtype and test the text and the source of a fault that the release fixes."""
    result = {}
    for failure in record.failures:
        if failure.is_fixed:
            report, reason = split(failure.why)
            place = (failure.family, *failure.target, failure.test)
            result[place] = (f"a fault is mended: {reason}", report)
    return result


def _reason(observation: Observation, compared: Difference, notes: Sequence[Note]) -> tuple[str, str] | None:
    """Return the text and the source of a reason; None if none is known."""
    if observation.family == "fingerprint" and observation.verdict in (Verdict.NEW, Verdict.GONE):
        word = "list" if observation.verdict is Verdict.NEW else "no longer list"
        return f"torch's own tests {word} it", f"torch.testing._internal of {_public(compared)}"
    note = note_of(observation.name.partition("/")[0], notes)
    return None if note is None else (note.text, note.source)


def _public(result: Difference) -> str:
    return str(result.new.provenance["torch"]).partition("+")[0]


def _unexplained_lines(unexplained: Iterable[Observation], commands: Mapping[str, str]) -> list[str]:
    """Return a line for each row of a report, with the command that finds its release."""
    lines = []
    groups: dict[Verdict, list[Observation]] = {}
    for observation in unexplained:
        groups.setdefault(observation.verdict, []).append(observation)
    for verdict, group in groups.items():
        rows = together(verdict, group)
        lines += [f"{verdict.value} {row.key}: {row.before or 'nothing'} -> {row.now or 'nothing'}" for row in rows]
        lines += [f"find the release: {command}" for command in told_commands(group, commands)]
    return lines


def with_changes(root: Path, rows: Sequence[Mapping[str, object]]) -> str:
    """Return the text of ``changes.toml`` with more rows, newest first."""
    text = (root / CHANGES).read_text(encoding="utf-8")
    head, first, rest = text.partition("[[change]]\n")
    blocks = ["".join(f"{name} = {written(row[name])}\n" for name in row) for row in rows]
    return head + "".join(f"[[change]]\n{block}\n" for block in blocks) + first + rest
