"""Rows of a TOML file of known faults, the reader of such a file, and the rows of a release, a device and a dtype."""

from __future__ import annotations

import builtins
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_amp.data_files import toml
from pytest_amp.data_files.releases import Release, holds_in, release_of
from pytest_amp.known.machine import MACHINES, has_property
from pytest_amp.precision import PRECISIONS
from pytest_amp.record import RecordError, content
from pytest_amp.text.quoted import quoted

#: Columns that every row must have: strings, except that ``key`` may be a list of strings.
REQUIRED = ("key", "reason", "report")
_BOUNDS = ("since", "until")
#: Optional columns with a string.
_OPTIONAL = (*_BOUNDS, "machine")
#: Optional columns with a name or a list of names.
_LISTS = ("devices", "dtypes", "raises")
#: Exceptions that a row may name without their module.
SHORT = {"AmpFailure": "pytest_amp.failure.AmpFailure"}
_DEVICE = re.compile(r"[a-z][a-z0-9_-]*")
_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


@dataclass(frozen=True)
class Known:
    """Known fault of torch: a row of the file.

    ``keys`` are the keys of the tests or observations that show the fault; ``*`` in a key matches anything. ``devices``
    and ``dtypes`` are the affected ones, named as in keys (``cuda``, ``fake-cuda``; ``bf16``); empty means all.
    ``since`` is the first release of torch with the fault, ``until`` the last one. ``machine`` is a property that the
    machine must have for the fault to show (see MACHINES). ``raises`` names the exceptions that are expected; empty
    means any.
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
        """Keys with their limits in parentheses, which distinguish rows of a file that have the same key."""
        limits = [*self.devices, *self.dtypes, *([self.releases] if self.since or self.until else [])]
        limits += [self.machine] if self.machine else []
        keys = ", ".join(self.keys)
        return f"{keys} ({', '.join(limits)})" if limits else keys

    @property
    def releases(self) -> str:
        """Releases of torch with the fault, in words: ``2.7 to 2.12``, ``from 2.11 on``, ``up to 2.13``, ``all``."""
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
        """Longest literal part and pattern of each key: a fast search for the literal rules out most keys of a run."""
        return tuple((max(key.split("*"), key=len), key_pattern(key)) for key in self.keys)

    def concerns(self, device: str | None, dtype: str | None) -> bool:
        """Return whether the fault may show on a device and in a dtype, named as in keys; None means any."""
        return self._is_on(device, dtype) and any(_may_match(key, device, dtype) for key in self.keys)

    def _is_on(self, device: str | None, dtype: str | None) -> bool:
        """Return whether the columns ``devices`` and ``dtypes`` include a device and a dtype; None means any."""
        return (device is None or not self.devices or device in self.devices) and (
            dtype is None or not self.dtypes or dtype in self.dtypes
        )

    def shows_here(self, device_type: str, precision: str) -> bool:
        """Return whether the fault can show on this machine: the row requires no property, or the machine has it."""
        return self.machine is None or has_property(self.machine, device_type, precision)

    def has_begun(self, release: Release) -> bool:
        """Return whether ``release`` is the first release with the fault, or a later one."""
        return holds_in(release, since=self.since, until=None)

    def is_in(self, release: Release) -> bool:
        """Return whether ``release`` has the fault."""
        return holds_in(release, since=self.since, until=self.until)


def _may_match(key: str, device: str | None, dtype: str | None) -> bool:
    """Return whether the device and dtype in ``key``, such as ``rules/cuda/bf16/*``, match these; None means any."""
    _, key_device, key_dtype, *_ = (*key.split("/", 3), "*", "*", "*")
    return (device is None or "*" in key_device or key_device == device) and (
        dtype is None or key_dtype not in PRECISIONS or key_dtype == dtype
    )


@functools.cache
def key_pattern(key: str) -> re.Pattern[str]:
    """Compile a key to a pattern. ``*`` matches anything; unlike in fnmatch, the brackets of test ids are literal."""
    return re.compile(".*".join(re.escape(part) for part in key.split("*")))


def read_known(path: Path) -> tuple[Known, ...]:
    """Read the faults in the TOML file ``path``. Raises ValueError with a message of one line that names the row."""
    tables = enumerate(_tables(path), start=1)
    rows = [_known(table, f"{path}: [[known]] number {number}") for number, table in tables]
    names = [row.name for row in rows]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise ValueError(f"{path}: the key {duplicate!r} is listed twice")
    return tuple(rows)


def _tables(path: Path) -> list[dict[str, object]]:
    """Return the tables ``[[known]]`` of a file; raises ValueError if it contains anything else."""
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
    """Return the row of a TOML table; ``place`` names it in the message of a ValueError."""
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
    """Return the names in a column with a list; a string is a single name."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ValueError(f"{place}: {column} is {value!r}; expected a list of names")
    is_valid, expected = _NAMES.get(column, (bool, ""))
    for name in names:
        if not is_valid(name):
            raise ValueError(f"{place}: {column} names {name!r}; expected {expected}")
    return tuple(names)


def _is_exception(name: str) -> bool:
    built_in = getattr(builtins, name, None)
    return (
        name in SHORT
        or _PATH.fullmatch(name) is not None
        or (isinstance(built_in, type) and issubclass(built_in, BaseException))
    )


#: Column with a list -> test of a name, and the expected names for a message.
_NAMES: Mapping[str, tuple[Callable[[str], bool], str]] = {
    "devices": (lambda name: _DEVICE.fullmatch(name) is not None, "devices as in keys: cpu, cuda, fake-cuda, …"),
    "dtypes": (PRECISIONS.__contains__, ", ".join(PRECISIONS)),
    "raises": (_is_exception, f"{', '.join(SHORT)}, a built-in exception, or one with its module"),
}


def _expect_releases(texts: Mapping[str, str], place: str) -> None:
    """Raise ValueError if ``since`` or ``until`` is not a release, or if ``since`` is later than ``until``."""
    bounds = [texts[name] for name in _BOUNDS if name in texts]
    try:
        releases = [release_of(bound) for bound in bounds]
    except ValueError:
        raise ValueError(f"{place}: {' and '.join(bounds)}: no release; expected one such as '2.14'") from None
    if releases != sorted(releases):
        raise ValueError(f"{place}: since {bounds[0]} is later than until {bounds[1]}")


def chosen(
    rows: Sequence[Known], *, release: Release | None, device: str | None, dtype: str | None, key: str | None
) -> list[Known]:
    """Return the faults of a release, a device, a dtype, and of keys that match ``key`` or contain it; None is any.

    A later row that ends a fault there removes it, as it does for the tests.
    """
    result = []
    for place, row in enumerate(rows):
        if not row.concerns(device, dtype) or (release is not None and not row.is_in(release)):
            continue
        ended = [later for later in rows[place + 1 :] if _ends(later, release, device, dtype)]
        keys = [pattern for pattern in row.keys if not any(_covers(later, pattern) for later in ended)]
        if key is not None:
            keys = [pattern for pattern in keys if key in pattern or key_pattern(key).fullmatch(pattern)]
        if keys:
            result.append(replace(row, keys=tuple(keys)))
    return result


def _ends(row: Known, release: Release | None, device: str | None, dtype: str | None) -> bool:
    """Return whether ``row`` says of the whole of a device and dtype that the fault has ended."""
    return (
        release is not None
        and row.has_begun(release)
        and not row.is_in(release)
        and (not row.devices or device in row.devices)
        and (not row.dtypes or dtype in row.dtypes)
    )


def _covers(row: Known, key: str) -> bool:
    return any(key_pattern(pattern).fullmatch(key) for pattern in row.keys)
