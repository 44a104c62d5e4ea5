"""Why a value differs between two releases of torch, where the data of this package knows it."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from packaging.version import InvalidVersion

from pytest_amp import toml
from pytest_amp.known import key_pattern
from pytest_amp.record import Observation, Verdict
from pytest_amp.releases import Release, release_of
from pytest_amp.rules.spec import Rule, Spec, load_spec

#: Families whose names are those of operators, or begin with one.
_OF_OPERATORS = ("rules", "fingerprint", "gradients")


@dataclass(frozen=True)
class ReleaseChange:
    """Something that a release changed: ``changes.toml``."""

    since: Release
    keys: tuple[str, ...]
    text: str
    source: str

    def has(self, key: str) -> bool:
        """Whether an observation's key is one of its patterns."""
        return any(key_pattern(pattern).fullmatch(key) for pattern in self.keys)


@functools.cache
def load_changes() -> tuple[ReleaseChange, ...]:
    """The changes that the package carries."""
    text = resources.files("pytest_amp.report").joinpath("changes.toml").read_text(encoding="utf-8")
    rows = toml.loads(text)["change"]
    return tuple(
        ReleaseChange(release_of(row["since"]), tuple(row["keys"]), row["text"], row["source"]) for row in rows
    )


def reasons(observations: Iterable[Observation], old: object, new: object) -> dict[str, str]:
    """By key, why each of ``observations`` is not what it was on torch ``old``, now that it is ``new``.

    Only what is known is in it: a rule of autocast that another release has, or a change of ``changes.toml``.
    """
    try:
        before, after = release_of(str(old)), release_of(str(new))
    except InvalidVersion:
        return {}
    if before == after:
        return {}
    found = {}
    for each in observations:
        if each.verdict in (Verdict.FAILED, Verdict.INCONCLUSIVE):
            continue  # a test has no rule, and what is not known to have moved no reason
        reason = _of_rule(each, str(old), str(new)) or _of_change(each, before, after)
        if reason is not None:
            found[each.key] = reason
    return found


def _of_change(observation: Observation, before: Release, after: Release) -> str | None:
    for change in load_changes():
        earlier, later = sorted((before, after))
        if earlier < change.since <= later and change.has(observation.key):
            return f"torch {change.since[0]}.{change.since[1]}: {change.text} ({change.source})"
    return None


def _of_rule(observation: Observation, old: str, new: str) -> str | None:
    """The rule of the operator that the observation is of, if the two releases have another one."""
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
            return _told(spec, device_type, overload, before.get(overload), rule)
        if rule is not None and rule.may_be_absent and observation.verdict in (Verdict.NEW, Verdict.GONE):
            return f"autocast's rule of {overload.removeprefix('aten::')} on {device_type} is {rule.may_be_absent}"
    return None


def _is_of(observation: Observation, overload: str) -> bool:
    """Whether it is of an operator, as ``aten::rms_norm/result``, ``nn.functional.rms_norm`` and ``rms_norm/x`` are."""
    first = observation.name.partition("/")[0]
    if "::" in first:
        return first == overload
    packet = overload.removeprefix("aten::").partition(".")[0]
    plain = first.removeprefix("torch.").removeprefix("ops.aten.")
    names = {plain, plain.removeprefix("nn.functional."), plain.replace(".", "_")}
    return packet in names


def _told(spec: Spec, device_type: str, overload: str, before: Rule | None, after: Rule | None) -> str:
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
    came = [name.removeprefix("aten::") for name in sorted(after.keys() - before.keys())]
    went = [name.removeprefix("aten::") for name in sorted(before.keys() - after.keys())]
    parts = [f"{', '.join(names)} {word}" for names, word in ((came, "came"), (went, "went")) if names]
    return "; ".join(parts) or None
