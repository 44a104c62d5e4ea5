"""Known reasons why a value differs between two releases of torch, from the data of this package."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from packaging.version import InvalidVersion, Version

from pytest_amp.data_files import toml
from pytest_amp.data_files.releases import Release, release_of
from pytest_amp.known.rows import key_pattern
from pytest_amp.record import FAILS, FIXED, Difference, Observation, Verdict
from pytest_amp.rules.spec import Rule, Spec, load_spec

#: Families whose names are those of operators, or begin with one.
_OF_OPERATORS = ("rules", "fingerprint", "gradients")
#: Word boundary in a module's name: RMS|Norm, Conv|Transpose3d.
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class ReleaseChange:
    """Change of a release, from ``changes.toml``."""

    since: Release
    keys: tuple[str, ...]
    text: str
    source: str

    def has(self, key: str) -> bool:
        """Return whether an observation's key matches one of the patterns."""
        return _has(self.keys, key)


@dataclass(frozen=True)
class OfBuild:
    """Difference between builds with and without CUDA, in any release, from ``changes.toml``."""

    keys: tuple[str, ...]
    text: str


@functools.cache
def load_changes() -> tuple[ReleaseChange, ...]:
    """Return the changes that the package knows."""
    return tuple(
        ReleaseChange(release_of(row["since"]), tuple(row["keys"]), row["text"], row["source"])
        for row in _data()["change"]
    )


@functools.cache
def load_builds() -> tuple[OfBuild, ...]:
    """Return the known differences between builds."""
    return tuple(OfBuild(tuple(row["keys"]), row["text"]) for row in _data()["build"])


def _data() -> dict[str, Any]:
    text = resources.files("pytest_amp.report").joinpath("changes.toml").read_text(encoding="utf-8")
    data: dict[str, Any] = toml.loads(text)
    return data


def reasons(observations: Iterable[Observation], old: object, new: object) -> dict[str, str]:
    """Return the known reasons, by key, why ``observations`` differ between torch ``old`` and ``new``.

    Known reasons are: a test fails since its fault is fixed, autocast has another rule in the other release, or
    ``changes.toml`` lists the change; and for a count of entries, the added and removed ones.
    """
    observations = list(observations)
    result = {observation.key: reason for observation in observations if (reason := _fixed(observation)) is not None}
    try:
        before, after = release_of(str(old)), release_of(str(new))
    except InvalidVersion:
        return result
    if before == after:
        return result
    for observation in observations:
        if observation.verdict in (Verdict.FIXED, Verdict.INCONCLUSIVE):
            continue  # a value that is not known to have moved has no reason
        if observation.verdict is Verdict.FAILED:  # a test has no rule
            reason = _of_failure(observation, before, after)
            result |= {observation.key: reason} if reason is not None else {}
            continue
        reason = (
            _of_rule(observation, str(old), str(new))
            or _of_change(observation, before, after)
            or _of_build(observation, str(old), str(new))
            or _of_entries(observation, observations)
        )
        if reason is not None:
            result[observation.key] = reason
    return result


def reasons_of(difference: Difference, torch: str) -> dict[str, str]:
    """Return the known reasons of a run's difference from its baseline, by key; ``torch`` is the installed version."""
    return reasons(difference.observations, difference.old.provenance.get("torch"), torch)


def _fixed(observation: Observation) -> str | None:
    """Return that the fault of an expected failure is fixed, in the words of the test's report."""
    value = observation.value
    if observation.verdict is not Verdict.FIXED or not isinstance(value, str):
        return None
    reason = value.removeprefix(f"{FAILS}: {FIXED}").partition(" passes on ")[0]
    return f"fixed upstream: {reason}; remove the expected failure"


def change_between(observation: Observation, old: str, new: str) -> str | None:
    """Return the entry of ``changes.toml`` for an observation between two releases, whatever its verdict."""
    try:
        return _of_change(observation, release_of(old), release_of(new))
    except InvalidVersion:
        return None


def _of_change(observation: Observation, before: Release, after: Release) -> str | None:
    for change in load_changes():
        earlier, later = sorted((before, after))
        if earlier < change.since <= later and change.has(observation.key):
            return f"torch {change.since[0]}.{change.since[1]}: {change.text} ({change.source})"
    return None


def _of_failure(observation: Observation, before: Release, after: Release) -> str | None:
    """Return the known reason of a fact that a failure's message names."""
    for word in re.split(r"[\s,;]+", str(observation.value)):
        fact = replace(observation, key=f"{observation.family}/{'/'.join(observation.target)}/{word}")
        reason = _of_change(fact, before, after)
        if reason is not None:
            return reason
    return None


def _of_build(observation: Observation, old: str, new: str) -> str | None:
    """Return the known difference of builds, if exactly one release is a build without CUDA by its name."""
    if _without_cuda(old) == _without_cuda(new):
        return None
    return next((build.text for build in load_builds() if _has(build.keys, observation.key)), None)


def _without_cuda(version: str) -> bool:
    return (Version(version).local or "").startswith("cpu")


def _has(patterns: Iterable[str], key: str) -> bool:
    return any(key_pattern(pattern).fullmatch(key) for pattern in patterns)


def _of_entries(observation: Observation, observations: Iterable[Observation]) -> str | None:
    """Return the added and removed entries of the fingerprint, for their count."""
    if (observation.family, observation.name) != ("fingerprint", "entries"):
        return None
    entries = [entry for entry in observations if (entry.family, entry.target) == ("fingerprint", observation.target)]
    return _moved(
        [entry.name for entry in entries if entry.verdict is Verdict.NEW],
        [entry.name for entry in entries if entry.verdict is Verdict.GONE],
    )


def _of_rule(observation: Observation, old: str, new: str) -> str | None:
    """Return the change of the rule of the observation's operator, if the two releases differ in it."""
    if observation.family not in _OF_OPERATORS:
        return None
    spec, device_type = load_spec(), observation.target[0].removeprefix("fake-")
    try:
        before, after = (spec.expected(device_type, version) for version in (old, new))
    except ValueError:  # older than the data
        return None
    if observation.name == "registered" and observation.family == "rules":
        return _counted(before, after)
    for overload in sorted(before.keys() | after.keys()):
        rule = after.get(overload)
        if not _is_of(observation, overload):
            continue
        if before.get(overload) != rule:
            return _rule_change(spec, device_type, overload, before.get(overload), rule)
        if rule is not None and rule.may_be_absent and observation.verdict in (Verdict.NEW, Verdict.GONE):
            return f"autocast's rule of {overload.removeprefix('aten::')} on {device_type} is {rule.may_be_absent}"
    return None


def _is_of(observation: Observation, overload: str) -> bool:
    """Return whether an observation belongs to an operator, as ``aten::rms_norm/result`` and ``nn.RMSNorm`` do."""
    first = observation.name.removeprefix("registered/").partition("/")[0]
    if "::" in first:
        return first == overload
    packet = overload.removeprefix("aten::").partition(".")[0]
    plain = first.removeprefix("torch.").removeprefix("ops.aten.")
    module = _WORDS.sub("_", plain.removeprefix("nn.").removeprefix("Lazy")).lower()
    names = {plain, plain.removeprefix("nn.functional."), plain.replace(".", "_"), module}
    return packet in names


def _rule_change(spec: Spec, device_type: str, overload: str, before: Rule | None, after: Rule | None) -> str:
    name = overload.removeprefix("aten::")
    turns = spec.rules[device_type][overload]
    now = "none" if after is None else after.name.value
    was = "none" if before is None else before.name.value
    since = next((rule.since for rule in turns if rule == after and rule.since), None)
    until = next((rule.until for rule in turns if rule == before and rule.until), None)
    when = f"since torch {since}" if since else f"until torch {until}" if until else "in between"
    source = (after or turns[-1]).source
    return f"autocast's rule of {name} on {device_type} was {was} and is {now}, {when} ({source})"


def _counted(before: dict[str, Rule], after: dict[str, Rule]) -> str | None:
    return _moved(
        [name.removeprefix("aten::") for name in sorted(after.keys() - before.keys())],
        [name.removeprefix("aten::") for name in sorted(before.keys() - after.keys())],
    )


def _moved(came: list[str], went: list[str]) -> str | None:
    parts = [f"{', '.join(names)} {word}" for names, word in ((came, "came"), (went, "went")) if names]
    return "; ".join(parts) or None
