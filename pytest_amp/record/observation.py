"""Observation, one measured fact, and its stable key."""

from __future__ import annotations

import enum
import json
import math
import re
from dataclasses import dataclass
from typing import Protocol, Union

#: Type of an observation's value: plain JSON, never a tensor.
Value = Union[str, int, float, bool, None, list["Value"], dict[str, "Value"]]  # noqa: UP007  # strings have no | at run time


#: Maximum nesting of lists and objects in a value: writing and comparing them recurses.
DEEPEST = 32


class Kind(enum.Enum):
    """What kind of fact it is, which decides how two of them are compared."""

    RULE = "rule"
    DTYPE = "dtype"
    COUNT = "count"
    STATE = "state"
    ERROR = "error"
    RATIO = "ratio"
    SECONDS = "seconds"
    BYTES = "bytes"
    MEASURE = "measure"
    SERIES = "series"


#: Kinds whose values must be equal in every run on every machine.
EXACT = frozenset({Kind.RULE, Kind.DTYPE, Kind.COUNT, Kind.STATE})


class Better(enum.Enum):
    """Direction in which a value should go, stated by the check: a reader of the file could only guess it."""

    LOWER = "lower"
    HIGHER = "higher"
    SAME = "same"


class Verdict(enum.Enum):
    """Status of an observation; FAILED and FIXED are those of a test, which a comparison also lists.

    FIXED is a test that was expected to fail for a fault of torch, and passes.
    """

    PASS = "pass"  # noqa: S105  # not a password
    FAILED = "failed"
    FIXED = "fixed"
    REGRESSED = "regressed"
    CHANGED = "changed"
    IMPROVED = "improved"
    NEW = "new"
    OBSERVED = "observed"
    GONE = "gone"
    INCONCLUSIVE = "inconclusive"


#: Precisions that --amp-dtype selects. Suites also run a few checks in fp32 and tf32, which a record may lack.
SELECTED = ("bf16", "fp16")


class Keyed:
    """Base of records about one family on one device in one precision: ``family/device/dtype/rest``."""

    key: str

    @property
    def family(self) -> str:
        """First part of the key."""
        return self.key.split("/", 1)[0]

    @property
    def target(self) -> tuple[str, str]:
        """Device and precision parts of the key."""
        _, device, dtype, _ = self.key.split("/", 3)
        return device, dtype

    @property
    def place(self) -> str:
        """Device and precision, joined: ``cpu-bf16``."""
        return "-".join(self.target)


@dataclass(frozen=True)
class Observation(Keyed):
    """Measured fact under a stable ``key``: its value, unit, limit (``allowed``, same unit), verdict and test.

    ``baseline`` is the earlier value if a baseline has the key. ``test`` is the file's stem and the test's name without
    parameters, which do not depend on the location of the tests. ``interval`` is a confidence interval of the value, in
    the same unit, such as the order statistics of a speedup. ``over_seeds`` are the values of an error for further
    seeds, those after the run's seed. ``better`` is the direction in which the value should change, and ``margin`` the
    relative change that is tolerated.
    """

    key: str
    kind: Kind
    value: Value
    unit: str | None = None
    allowed: float | None = None
    verdict: Verdict = Verdict.PASS
    baseline: Value = None
    test: str = ""
    interval: tuple[float, float] | None = None
    better: Better | None = None
    margin: float | None = None
    over_seeds: tuple[float, ...] | None = None

    @property
    def name(self) -> str:
        """Last part of the key, which may contain slashes."""
        return self.key.split("/", 3)[3]

    def to_json(self) -> dict[str, Value]:
        """As plain JSON, without fields that are None."""
        data: dict[str, Value] = {"key": self.key, "kind": self.kind.value, "value": self.value}
        optional: dict[str, Value] = {
            "unit": self.unit,
            "allowed": self.allowed,
            "interval": None if self.interval is None else [*self.interval],
            "over_seeds": None if self.over_seeds is None else [*self.over_seeds],
            "better": None if self.better is None else self.better.value,
            "margin": self.margin,
            "baseline": self.baseline,
            "test": self.test or None,
        }
        data.update({name: value for name, value in optional.items() if value is not None})
        data["verdict"] = self.verdict.value
        return data

    @classmethod
    def from_json(cls, data: object) -> Observation:
        """Create an observation from plain JSON (``to_json``). Raises ValueError with the key and the field."""
        if not isinstance(data, dict) or not isinstance(data.get("key"), str):
            raise ValueError(f"an observation without a key: {str(data)[:80]!r}")
        key = data["key"]
        check_key(key)
        for name in ("unit", "test"):
            if not isinstance(data.get(name, ""), str):
                raise ValueError(f"{key}: {name} is {str(data[name])[:80]!r}, not text")
        try:
            return cls(
                key=key,
                kind=Kind(data.get("kind")),
                value=data["value"],
                unit=data.get("unit"),
                allowed=_number("allowed", data.get("allowed")),
                verdict=Verdict(data.get("verdict", "pass")),
                baseline=data.get("baseline"),
                test=data.get("test", ""),
                interval=_interval(data.get("interval")),
                over_seeds=_over_seeds(data.get("over_seeds")),
                better=None if data.get("better") is None else Better(data["better"]),
                margin=_number("margin", data.get("margin")),
            )
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None


def check_written(observation: Observation) -> None:
    """Raise ValueError for an observation that cannot be written to a file and read back, such as an invalid unit."""
    text = json.dumps(observation.to_json(), ensure_ascii=False)
    text.encode()  # half a surrogate pair cannot be encoded
    Observation.from_json(json.loads(text))


def _number(name: str, value: object) -> float | None:
    """Return a number or None; raises ValueError. Nonfinite numbers are text in a file."""
    if value is None:
        return None
    if value in ("inf", "-inf", "nan") or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{name} is an integer beyond the range of a float") from None
    raise ValueError(f"{name} is {str(value)[:80]!r}, not a number")


def _interval(value: object) -> tuple[float, float] | None:
    """Return two numbers in order, or None; raises ValueError."""
    if value is None:
        return None
    ends = [_number("interval", end) for end in value] if isinstance(value, list) else []
    low, high = ends if len(ends) == 2 else (None, None)
    if low is None or high is None or not low <= high:
        raise ValueError(f"interval is {str(value)[:80]!r}; expected two numbers, the smaller one first")
    return low, high


def _over_seeds(value: object) -> tuple[float, ...] | None:
    """Return numbers, or None; raises ValueError."""
    if value is None:
        return None
    numbers = [_number("over_seeds", number) for number in value] if isinstance(value, list) else []
    values = tuple(number for number in numbers if number is not None)
    if not values or len(values) < len(numbers):
        raise ValueError(f"over_seeds is {str(value)[:80]!r}; expected numbers")
    return values


def deeper_than(limit: int, value: object) -> bool:
    """Return whether lists and objects in ``value`` are nested more than ``limit`` deep."""
    level: list[object] = [value]
    for _ in range(limit + 1):
        nested = [item for item in level if isinstance(item, (list, dict))]
        if not nested:
            return False
        level = [inner for item in nested for inner in (item.values() if isinstance(item, dict) else item)]
    return True


def check_value(key: str, value: object) -> None:
    """Raise ValueError unless ``value`` is plain JSON, so that a file returns it unchanged."""
    if deeper_than(DEEPEST, value):
        raise ValueError(f"{key}: lists and objects nested more than {DEEPEST} deep")
    _check_plain(key, value)


def _check_plain(key: str, value: object) -> None:
    if isinstance(value, list):
        for item in value:
            _check_plain(key, item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if type(name) is not str:
                raise ValueError(f"{key}: the key {name!r} is not a string")
            _check_plain(key, item)
    elif type(value) not in (str, int, float, bool, type(None)):
        raise ValueError(
            f"{key}: a {type(value).__name__} is not plain JSON; expected str, int, float, bool, list, dict"
        )


def unwritable(name: object, value: object) -> str | None:
    """Return why no file can store ``value`` under ``name``, in one line; None if one can."""
    if type(name) is not str:
        return f"the name {name!r} is not text"
    try:
        if deeper_than(DEEPEST, value):
            return f"{name}: lists and objects nested more than {DEEPEST} deep"
        json.dumps(finite(value), allow_nan=False)  # type: ignore[arg-type]  # of any type
    except (TypeError, ValueError, RecursionError) as error:
        return f"{name}: {error}"
    return None


def canonical(value: Value) -> str:
    """Return a unique text of a value, equal before and after a file: 1, 1.0 and true differ, NaN equals NaN."""
    return json.dumps(finite(value), sort_keys=True)


def finite(value: Value) -> Value:
    """Return ``value`` as it is written: infinity and NaN, which JSON lacks, become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    return value


_KEY = re.compile(
    r"[a-z][a-z0-9_]*/(fake-)?[a-z][a-z0-9_]*/(bf16|fp16|fp32|tf32)/[^\x00-\x20\x7f](.*[^\x00-\x20\x7f])?"
)


def make_key(family: str, device: str, dtype: str, name: str) -> str:
    """Return the key ``family/device/dtype/name``, e.g. ``rules/cuda/bf16/aten::softmax.int``.

    The device has no index, and nothing in a key may depend on the version of torch or Python, or on the location of
    the tests, so that the same fact has the same key in every run. Raises ValueError.
    """
    return check_key(f"{family}/{device}/{dtype}/{name}")


def check_key(key: str) -> str:
    """Return ``key`` if it follows the grammar; raises ValueError otherwise."""
    if not _KEY.fullmatch(key) or not key.isprintable():
        raise ValueError(
            f"{key!r} is not an observation key; expected family/device/dtype/name in printable characters"
        )
    return key


class Observe(Protocol):
    """Function that records one fact, as ``Amp.observe`` does: a test passes it to the functions behind the checks."""

    def __call__(  # noqa: PLR0913  # keywords of one fact
        self,
        name: str,
        value: Value,
        /,
        *,
        kind: str,
        unit: str | None = None,
        allowed: float | None = None,
        interval: tuple[float, float] | None = None,
        over_seeds: tuple[float, ...] | None = None,
        better: str | None = None,
        margin: float | None = None,
    ) -> object:
        """Record a fact; ``pytest_amp.amp.base.Bound.observe`` documents the keywords and exceptions."""
