"""Renamed keys: the mapping of keys in records of earlier versions to present keys, from the table renamed.toml."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import InvalidVersion, Version

from pytest_amp.data_files import toml
from pytest_amp.record.observation import Observation

_FILE = Path(__file__).with_name("renamed.toml")
#: Separator that every key of a test contains, and no key of an observation of the suites.
_OF_TESTS = "::"


@dataclass(frozen=True)
class Renaming:
    """Row of the table: keys that match ``earlier`` were renamed to ``present``, where ``*`` stands for any text.

    A pattern with ``::`` matches keys of tests, and if the family of a test changes, that of its observations does,
    too. A pattern without ``::`` matches keys of observations. The row applies to records of version ``since`` or
    earlier.
    """

    earlier: str
    present: str
    since: str
    reason: str

    @property
    def is_of_tests(self) -> bool:
        """Return whether the row renames tests instead of observations."""
        return _OF_TESTS in self.earlier

    def renewed(self, key: str) -> str:
        """Return the present key for ``key``. A key that does not match is returned unchanged."""
        return _replaced(key, self.earlier, self.present)

    def restored(self, key: str) -> str:
        """Return the earlier key for ``key``. A key that does not match is returned unchanged."""
        return _replaced(key, self.present, self.earlier)


@functools.cache
def renamings() -> tuple[Renaming, ...]:
    """Return the rows of the table, in the order in which they apply."""
    rows = toml.loads(_FILE.read_text(encoding="utf-8"))["renamed"]
    return tuple(Renaming(row["from"], row["to"], row["since"], row["reason"]) for row in rows)


def renamings_for(version: object) -> tuple[Renaming, ...]:
    """Return the rows that apply to a record of this version of pytest-amp; all rows if the version is invalid."""
    try:
        written = Version(str(version))
    except InvalidVersion:
        return renamings()
    return tuple(row for row in renamings() if written <= Version(row.since))


def renewed_test(key: str, rows: Iterable[Renaming]) -> str:
    """Return the present key for the key of a test."""
    for row in rows:
        if row.is_of_tests:
            key = row.renewed(key)
    return key


def renewed(observations: Iterable[Observation], rows: Iterable[Renaming]) -> tuple[Observation, ...]:
    """Return the observations under their present keys, and with the present names of their tests."""
    rows = tuple(rows)
    of_observations = [row for row in rows if not row.is_of_tests]
    tests = functools.cache(lambda key: renewed_test(key, rows))  # a test has many observations

    def present(observation: Observation) -> Observation:
        family, _, _, test = tests(_test_of(observation)).split("/", 3)
        key = f"{family}/{observation.key.split('/', 1)[1]}"
        for row in of_observations:
            key = row.renewed(key)
        is_present = (key, test) == (observation.key, observation.test)
        return observation if is_present else replace(observation, key=key, test=test)

    return tuple(present(observation) for observation in observations)


def keys_of_test(key: str) -> list[str]:
    """Return the key of a test, and its earlier ones."""
    return [key, *_earlier(key, (row for row in renamings() if row.is_of_tests))]


def keys_of(observation: Observation) -> list[str]:
    """Return the key of an observation, and its earlier ones."""
    families = [key.partition("/")[0] for key in keys_of_test(_test_of(observation))]
    rest = observation.key.split("/", 1)[1]
    keys = dict.fromkeys(f"{family}/{rest}" for family in families)
    keys |= dict.fromkeys(_earlier(observation.key, (row for row in renamings() if not row.is_of_tests)))
    return [*keys]


def _earlier(key: str, rows: Iterable[Renaming]) -> Iterator[str]:
    """Yield the former keys of ``key``, the latest first."""
    for row in reversed(tuple(rows)):
        earlier = row.restored(key)
        if earlier != key:
            yield earlier
            key = earlier


def _test_of(observation: Observation) -> str:
    return f"{observation.family}/{'/'.join(observation.target)}/{observation.test}"


def _replaced(key: str, before: str, after: str) -> str:
    match = _pattern(before).fullmatch(key)
    if match is None:
        return key
    parts = after.split("*")
    return "".join(part for pair in zip(parts, (*match.groups(), ""), strict=True) for part in pair)


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile("(.*?)".join(re.escape(part) for part in text.split("*")))
