"""Autocast's expected rule for each operator overload, from ``spec.toml``, by device type and release."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from pytest_amp.data_files import toml
from pytest_amp.data_files.releases import holds_in, release_of
from pytest_amp.devices.names import rules_of

#: The data file's path in failures.
SPEC_FILE = "pytest_amp/rules/spec.toml"


class RuleName(enum.Enum):
    """PyTorch's names of autocast's rules: ``CastPolicy`` in ``aten/src/ATen/autocast_mode.h``.

    A ``BANNED`` operator raises an error under autocast; a ``NONE`` operator runs as it does without autocast.
    """

    LOWER_PRECISION_FP = "lower_precision_fp"
    FP32 = "fp32"
    FP32_SET_OPT_DTYPE = "fp32_set_opt_dtype"
    FP32_APPEND_DTYPE = "fp32_append_dtype"
    PROMOTE = "promote"
    BANNED = "banned"
    NONE = "none"


class Coverage(enum.Enum):
    """Coverage of a device type and a torch release by the spec."""

    COVERED = "covered"
    NEWER = "newer"
    UNKNOWN_DEVICE = "unknown device"


@dataclass(frozen=True)
class Rule:
    """The rule of one overload on one device type.

    ``since`` and ``until`` are the first and the last release that have the rule, such as ``2.12``; None means from the
    device type's first rules on, and up to now. ``dtype`` is the target of lower_precision_fp if it is not the autocast
    dtype. ``own_kernel`` explains why the kernel is not a CastPolicy wrapper, and ``may_be_absent`` states which builds
    have it; both are None for most operators.
    """

    name: RuleName
    source: str
    since: str | None = None
    until: str | None = None
    dtype: str | None = None
    own_kernel: str | None = None
    may_be_absent: str | None = None

    def holds_in(self, release: tuple[int, int]) -> bool:
        """Return whether the rule holds in the release ``(major, minor)``."""
        return holds_in(release, since=self.since, until=self.until)


@dataclass(frozen=True)
class Spec:
    """Contents of a spec file: covered releases, the first release with autocast for each device type, and rules.

    ``device_types[name]`` is the first covered release in which that device type has autocast, None if all of them have
    it; ``introduced[name]`` is the release that introduced it, as text for readers. ``rules[device_type][overload]``
    are the successive rules, newest last. ``left_out`` maps each device type that has autocast kernels in torch, but no
    rules in the spec, to the reason.
    """

    first: str
    last: str
    device_types: Mapping[str, str | None]
    introduced: Mapping[str, str]
    rules: Mapping[str, Mapping[str, tuple[Rule, ...]]]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def coverage(self, device_type: str, torch_version: str) -> Coverage:
        """Return the coverage of ``device_type`` on ``torch_version``. Raises ValueError for an older release.

        Only the base release matters: ``2.13.0+cu130`` and ``2.14.0.dev20260101`` are 2.13 and 2.14.
        """
        release = release_of(torch_version)
        if device_type not in self.device_types:
            return Coverage.UNKNOWN_DEVICE
        since = self.device_types[device_type] or self.first
        if release < release_of(since):
            raise ValueError(f"the rules of {device_type} are known from torch {since} on, this is {torch_version}")
        return Coverage.NEWER if release > release_of(self.last) else Coverage.COVERED

    def expected(self, device_type: str, torch_version: str) -> dict[str, Rule]:
        """Return the rule of each overload (``aten::softmax.int``) that has an autocast kernel on ``device_type``.

        For a release newer than the spec these are the rules of the last covered release. The result is empty for an
        unknown device type. Raises ValueError for an older release.
        """
        if self.coverage(device_type, torch_version) is Coverage.UNKNOWN_DEVICE:
            return {}
        release = min(release_of(torch_version), release_of(self.last))
        rules = self.rules[device_type]
        return {name: rule for name in rules for rule in rules[name] if rule.holds_in(release)}


@functools.cache
def load_spec() -> Spec:
    """Load the spec of the package. Raises ValueError naming the row and the field if it is malformed."""
    text = resources.files("pytest_amp.rules").joinpath("spec.toml").read_text(encoding="utf-8")
    return parse_spec(text)


@functools.cache
def _load(path: Path) -> Spec:
    try:
        return parse_spec(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise ValueError(str(error).replace(SPEC_FILE, str(path))) from None


def _spec_of(device_type: str) -> Spec:
    """Return the spec that a back end provides for its device type, else the spec of the package."""
    path = rules_of(device_type)
    return load_spec() if path is None else _load(path)


def expected(device_type: str, torch_version: str) -> dict[str, Rule]:
    """Return ``Spec.expected`` of the package's spec, or of the file that a back end provides."""
    return _spec_of(device_type).expected(device_type, torch_version)


def ever_ruled(device_type: str) -> tuple[str, ...]:
    """Return the overloads with a rule on ``device_type`` in any covered release, in alphabetical order."""
    return tuple(sorted(_spec_of(device_type).rules.get(device_type, ())))


def coverage(device_type: str, torch_version: str) -> Coverage:
    """Return ``Spec.coverage`` of the package's spec, or of the file that a back end provides."""
    return _spec_of(device_type).coverage(device_type, torch_version)


#: Optional fields of a rule, of an operator's row and of a group.
_BOUNDS = ("since", "until")
_FIELDS = (*_BOUNDS, "dtype", "source", "own_kernel", "may_be_absent")


def parse_spec(text: str) -> Spec:
    """Parse the spec in ``text``. Raises ValueError naming the row and the field if it is malformed."""
    data = toml.loads(text)
    covered = _table(data, "covered", where="the file")
    device_types = _table(data, "device_types", where="the file")
    rules: dict[str, dict[str, tuple[Rule, ...]]] = {name: {} for name in device_types}
    sources = {name: _text(table, "source", where=f"device type {name}") for name, table in device_types.items()}
    for group in _list(data, "group", where="the file"):
        title = _text(group, "title", where="a group")
        common = _fields(group, known=("title", "operators"), where=f"group {title!r}")
        for row in _list(group, "operators", where=f"group {title!r}"):
            name = _text(row, "name", where=f"an operator of group {title!r}")
            overload = name if "::" in name else f"aten::{name}"
            where = f"operator {name}"
            fields = _fields(row, known=("name", *device_types), where=where)
            for device_type in (key for key in row if key in device_types):
                if overload in rules[device_type]:
                    raise ValueError(f"{SPEC_FILE}: {where}: {device_type} is given twice")
                defaults = {"source": sources[device_type], **common, **fields}
                rules[device_type][overload] = _rules(row[device_type], defaults, where=where, field=device_type)
    for device_type, releases in _table({"earlier": {}, **data}, "earlier", where="the file").items():
        for release, names in releases.items():
            _came_in(release, names, rules.get(device_type, {}), where=f"earlier.{device_type}")
    since = {name: _bound(table, "since", where=f"device type {name}") for name, table in device_types.items()}
    introduced = {name: _text(table, "introduced", where=f"device type {name}") for name, table in device_types.items()}
    first, last = (_bound(covered, key, where="covered") for key in ("first", "last"))
    if first is None or last is None:
        raise ValueError(f"{SPEC_FILE}: covered: first and last are needed")
    absent = _table({"left_out": {}, **data}, "left_out", where="the file")
    left_out = {name: _text(table, "reason", where=f"left_out.{name}") for name, table in absent.items()}
    return Spec(first, last, since, introduced, rules, left_out)


def _came_in(release: str, names: Any, rules: dict[str, tuple[Rule, ...]], *, where: str) -> None:
    """Set ``since`` of the first rule of each operator in ``names`` to ``release``."""
    _bound({"since": release}, "since", where=where)
    for name in names:
        overload = name if "::" in name else f"aten::{name}"
        if overload not in rules or rules[overload][0].since is not None:
            raise ValueError(f"{SPEC_FILE}: {where}: {name!r} has no rule, or one that came later")
        first, *further = rules[overload]
        rules[overload] = (replace(first, since=release), *further)


def _rules(value: Any, defaults: Mapping[str, str], *, where: str, field: str) -> tuple[Rule, ...]:
    values = value if isinstance(value, list) else [value]
    rules = []
    for entry in values:
        table = {"rule": entry} if isinstance(entry, str) else entry
        if not isinstance(table, dict):
            raise ValueError(f"{SPEC_FILE}: {where}: {field} = {entry!r} is not a rule or a table")
        fields = _fields(table, known=("rule",), where=f"{where}: {field}")
        named = _text(table, "rule", where=f"{where}: {field}")
        valid = [name.value for name in RuleName if name is not RuleName.NONE]
        if named not in valid:
            raise ValueError(f"{SPEC_FILE}: {where}: {field} = {named!r} is not a rule; expected {', '.join(valid)}")
        rules.append(Rule(RuleName(named), **{**defaults, **fields}))
    return tuple(rules)


def _fields(table: Mapping[str, Any], *, known: tuple[str, ...], where: str) -> dict[str, str]:
    for key in table:
        if key not in (*known, *_FIELDS):
            raise ValueError(f"{SPEC_FILE}: {where}: unknown field {key!r}; expected {', '.join((*known, *_FIELDS))}")
    for key in _BOUNDS:
        _bound(table, key, where=where)
    return {key: _text(table, key, where=where) for key in _FIELDS if key in table}


def _bound(table: Mapping[str, Any], key: str, *, where: str) -> str | None:
    if key not in table:
        return None
    value = _text(table, key, where=where)
    try:
        Version(value)
    except InvalidVersion:
        raise ValueError(f"{SPEC_FILE}: {where}: {key} = {value!r} is not a release, such as '2.12'") from None
    return value


def _text(table: Mapping[str, Any], key: str, *, where: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value:
        raise ValueError(f"{SPEC_FILE}: {where}: {key} = {value!r} is not text")
    return value


def _table(table: Mapping[str, Any], key: str, *, where: str) -> dict[str, Any]:
    value = table.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{SPEC_FILE}: {where}: {key} is not a table")
    return value


def _list(table: Mapping[str, Any], key: str, *, where: str) -> list[Any]:
    value = table.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"{SPEC_FILE}: {where}: {key} is not a list of tables")
    return value
