"""Markers of tests, read once and checked strictly."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

import pytest

from pytest_amp.precision import ALIASES, PRECISIONS, Precision

AMP_LINE = (
    "amp(*, devices=None, dtypes=None, fake=False, tolerance=None, floor=None, xfail=None): "
    "how a mixed-precision test is run: the device types and precisions it is for; fake=True lets it run on fake "
    "devices, where operators have rules and no case runs; a tolerance or a speedup floor of its own; "
    "xfail={'cuda-fp16': 'owner/repo#123'}, or {'cuda': ...} for all dtypes, is strict."
)
PARAMETRIZE_LINE = (
    "amp_parametrize(argname, function): parametrize a mixed-precision test with function(target), whose values "
    "depend on the device and precision."
)
LONG_LINE = "amp_long: the test belongs to the long tier, which --amp-tier=long or all selects."
LINES = (AMP_LINE, PARAMETRIZE_LINE, LONG_LINE)


@dataclass(frozen=True)
class AmpMarker:
    """Keywords of the ``amp`` marker, merged from the test outwards (test, class, module)."""

    devices: tuple[str, ...] | None = None
    dtypes: tuple[Precision, ...] | None = None
    fake: bool = False
    tolerance: float | None = None
    floor: float | None = None
    xfail: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def merged(cls, marks: Iterable[pytest.Mark]) -> AmpMarker:
        """Merge the ``amp`` marks of a test, closest first. Raises ValueError in one line."""
        known = tuple(f.name for f in fields(cls))
        keywords: dict[str, object] = {}
        for mark in marks:
            if mark.args:
                raise ValueError(f"amp takes keywords only, got {mark.args[0]!r}; expected {', '.join(known)}")
            for name, value in mark.kwargs.items():
                if name not in known:
                    raise ValueError(f"unknown keyword {name!r}; expected {', '.join(known)}")
                keywords.setdefault(name, value)
        return cls(
            devices=_devices(keywords.get("devices")),
            dtypes=_dtypes(keywords.get("dtypes")),
            fake=_boolean(keywords.get("fake", False)),
            tolerance=_positive("tolerance", keywords.get("tolerance")),
            floor=_positive("floor", keywords.get("floor")),
            xfail=_xfail(keywords.get("xfail")),
        )

    def expected_failure(self, device_key: str, precision: str) -> str | None:
        """Return the report for which the test is expected to fail there; None without one."""
        return self.xfail.get(f"{device_key}-{precision}", self.xfail.get(device_key))


#: Example lists of names, for messages.
_EXAMPLES = {"devices": "['cuda']", "dtypes": "['bf16']"}


def _names(keyword: str, value: object) -> tuple[str, ...]:
    values = (value,) if isinstance(value, str) else value
    if not isinstance(values, (list, tuple, set, frozenset)) or not all(isinstance(v, str) for v in values):
        raise ValueError(f"{keyword}={value!r} is not a list of names; expected a list such as {_EXAMPLES[keyword]}")
    if not values:
        raise ValueError(
            f"{keyword}={value!r} names none, so that the test runs nowhere; expected {_EXAMPLES[keyword]}"
        )
    return tuple(values)


def _devices(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = _names("devices", value)
    for name in names:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise ValueError(f"devices={name!r} is not a device type; expected a type without an index, such as 'cuda'")
    return names


def _dtypes(value: object) -> tuple[Precision, ...] | None:
    if value is None:
        return None
    known = {**ALIASES, **PRECISIONS}
    if isinstance(value, (list, tuple, set, frozenset)):  # torch's own dtypes are accepted as well as their names
        value = [str(item) if str(item) in ALIASES else item for item in value]
    names = _names("dtypes", value)
    for name in names:
        if name not in known:
            raise ValueError(f"dtypes={name!r} is not a precision; expected {', '.join(known)}")
    return tuple(known[name] for name in names)


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"fake={value!r} is not a boolean; expected True or False")
    return value


def _positive(keyword: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ValueError(f"{keyword}={value!r} is not a number above 0; expected 0.5, 1.0, 2.0, …")
    return float(value)


def _xfail(value: object) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise ValueError(f"xfail={value!r} is not a dictionary such as {{'cuda-fp16': 'owner/repo#123'}}")
    for key, report in value.items():
        if not re.fullmatch(rf"[a-z][a-z0-9_]*(-({'|'.join(PRECISIONS)}))?", key):
            raise ValueError(f"xfail key {key!r} is not a device type or a device type and precision, as 'cuda-fp16'")
        if not report.strip():
            raise ValueError(f"xfail[{key!r}] names no report")
    return value
