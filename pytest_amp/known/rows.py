"""Rows of a file of known faults, and its reader."""

from __future__ import annotations

import builtins
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_amp.data_files import toml
from pytest_amp.data_files.releases import Release, holds_in, release_of
from pytest_amp.known.machine import MACHINES, has_property
from pytest_amp.precision import PRECISIONS
from pytest_amp.record import RecordError, content
from pytest_amp.text.quoted import quoted

#: Columns that every row has, optional ones with a text, and those with a list of names; a key may be a list, too.
REQUIRED = ("key", "reason", "report")
_BOUNDS = ("since", "until")
_OPTIONAL = (*_BOUNDS, "machine")
_LISTS = ("devices", "dtypes", "raises")
#: Exceptions with a name shorter than their import path.
SHORT = {"AmpFailure": "pytest_amp.failure.AmpFailure"}
_DEVICE = re.compile(r"[a-z][a-z0-9_-]*")
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


@dataclass(frozen=True)
class Known:
    """Known fault: the ``keys`` of tests or observations that show it, in which ``*`` matches anything.

    ``devices`` and ``dtypes`` name those that have it, as keys do (``cuda``, ``fake-cuda``; ``bf16``); empty means all.
    ``since`` is the first release of torch with the fault, ``until`` the last one. ``machine`` is a property of the
    machine without which the fault does not show (see MACHINES). ``raises`` names the only expected exceptions.
    """

    keys: tuple[str, ...]
    reason: str
    report: str
    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    machine: str | None = None
    raises: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The keys, and in parentheses whatever limits them: a file may have several rows with one key."""
        limits = [*self.devices, *self.dtypes, *([self.releases] if self.since or self.until else [])]
        limits += [self.machine] if self.machine else []
        keys = ", ".join(self.keys)
        return f"{keys} ({', '.join(limits)})" if limits else keys

    @property
    def releases(self) -> str:
        """The releases of torch with the fault: ``2.7 to 2.12``, ``from 2.11 on``, ``up to 2.13``, ``all``."""
        if self.since and self.until:
            return self.since if self.since == self.until else f"{self.since} to {self.until}"
        if self.since:
            return f"from {self.since} on"
        return f"up to {self.until}" if self.until else "all"

    def matches(self, key: str) -> bool:
        """Return whether the fault covers ``key``, ``family/device/dtype/name``."""
        if not any(literal in key and pattern.fullmatch(key) for literal, pattern in self._patterns):
            return False
        _, device, dtype, *_ = (*key.split("/", 3), "", "")
        return self._is_on(device, dtype)

    @functools.cached_property
    def _patterns(self) -> tuple[tuple[str, re.Pattern[str]], ...]:
        """The patterns of the keys, each after its longest literal part: most keys lack that, and a search is fast."""
        return tuple((max(key.split("*"), key=len), key_pattern(key)) for key in self.keys)

    def concerns(self, device: str | None, dtype: str | None) -> bool:
        """Return whether the fault may show on a device and in a dtype, as keys name them; None is any."""
        return self._is_on(device, dtype) and any(_names_these(key, device, dtype) for key in self.keys)

    def _is_on(self, device: str | None, dtype: str | None) -> bool:
        """Return whether the columns of the row allow a device and a dtype; None is any."""
        return (device is None or not self.devices or device in self.devices) and (
            dtype is None or not self.dtypes or dtype in self.dtypes
        )

    def shows_here(self, device_type: str, precision: str) -> bool:
        """Return whether this machine has the property without which the fault does not show, if there is one."""
        return self.machine is None or has_property(self.machine, device_type, precision)

    def has_begun(self, release: Release) -> bool:
        """Return whether ``release`` is the first one with the fault, or later."""
        return holds_in(release, since=self.since, until=None)

    def is_in(self, release: Release) -> bool:
        """Return whether ``release`` has the fault."""
        return holds_in(release, since=self.since, until=self.until)


def _names_these(key: str, device: str | None, dtype: str | None) -> bool:
    """Return whether a key that names a device or a dtype itself, as ``rules/cuda/bf16/*`` does, names these."""
    _, own_device, own_dtype, *_ = (*key.split("/", 3), "*", "*", "*")
    return (device is None or "*" in own_device or own_device == device) and (
        dtype is None or own_dtype not in PRECISIONS or own_dtype == dtype
    )


@functools.cache
def key_pattern(key: str) -> re.Pattern[str]:
    """Return the pattern of ``key``: ``*`` matches anything, and brackets, which ids of tests have, are literal."""
    return re.compile(".*".join(re.escape(part) for part in key.split("*")))


def read_known(path: Path) -> tuple[Known, ...]:
    """Read the faults in the TOML file ``path``. Raises ValueError in one line with the error and its place."""
    tables = enumerate(_tables(path), start=1)
    rows = [_known(table, f"{path}: [[known]] number {number}") for number, table in tables]
    names = [row.name for row in rows]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{path}: the key {twice!r} stands there twice")
    return tuple(rows)


def _tables(path: Path) -> list[dict[str, object]]:
    try:
        data = toml.loads(content(path))
    except RecordError as error:
        raise ValueError(f"{error}; expected a TOML file") from None
    except ValueError as error:
        raise ValueError(f"{path}: not TOML: {quoted(error)}; expected a TOML file") from None
    tables = data.pop("known", [])
    if data or not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        unknown = next(iter(data), "known")
        raise ValueError(f"{path}: {unknown!r}; expected tables [[known]] with key, reason and report")
    return tables


def _known(table: Mapping[str, object], place: str) -> Known:
    texts: dict[str, str] = {}
    lists: dict[str, tuple[str, ...]] = {}
    for column in (*REQUIRED, *table):
        value = table.get(column)
        if column in _LISTS or (column == "key" and isinstance(value, list)):
            lists["keys" if column == "key" else column] = _list(column, value, place)
        elif column not in (*REQUIRED, *_OPTIONAL) or not isinstance(value, str) or not value.strip():
            expected = f"text in each of {', '.join(REQUIRED)}, optionally in {', '.join(_OPTIONAL)}"
            raise ValueError(f"{place}: {column} is {value!r}; expected {expected}, and lists in {', '.join(_LISTS)}")
        else:
            texts[column] = value
    lists.setdefault("keys", (texts.pop("key", ""),))
    for key in lists["keys"]:
        if key.count("/") < 3 and "*" not in key:
            raise ValueError(f"{place}: {key!r} is not a key; expected family/device/dtype/name, with * for anything")
    _expect_releases(texts, place)
    if "machine" in texts and texts["machine"] not in MACHINES:
        raise ValueError(f"{place}: machine is {texts['machine']!r}; expected {', '.join(MACHINES)}")
    return Known(reason=texts.pop("reason"), report=texts.pop("report"), **texts, **lists)  # type: ignore[arg-type]


def _list(column: str, value: object, place: str) -> tuple[str, ...]:
    """Return the names in a list, or the single one of a text."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ValueError(f"{place}: {column} is {value!r}; expected a list of names")
    valid, expected = _NAMES.get(column, (bool, ""))
    for name in names:
        if not valid(name):
            raise ValueError(f"{place}: {column} names {name!r}; expected {expected}")
    return tuple(names)


def _is_exception(name: str) -> bool:
    built_in = getattr(builtins, name, None)
    return (
        name in SHORT
        or _PATH.fullmatch(name) is not None
        or (isinstance(built_in, type) and issubclass(built_in, BaseException))
    )


#: Whether a name is valid in a column with a list, and the expected ones.
_NAMES: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "devices": (lambda name: _DEVICE.fullmatch(name) is not None, "devices as in keys: cpu, cuda, fake-cuda, …"),
    "dtypes": (PRECISIONS.__contains__, ", ".join(PRECISIONS)),
    "raises": (_is_exception, f"{', '.join(SHORT)}, a built-in exception, or one with its module"),
}


def _expect_releases(texts: Mapping[str, str], place: str) -> None:
    """Raise ValueError if since or until is not a release, or since the later of the two."""
    bounds = [texts[name] for name in _BOUNDS if name in texts]
    try:
        releases = [release_of(bound) for bound in bounds]
    except ValueError:
        raise ValueError(f"{place}: {' and '.join(bounds)}: no release; expected one such as '2.14'") from None
    if releases != sorted(releases):
        raise ValueError(f"{place}: since {bounds[0]} is later than until {bounds[1]}")
