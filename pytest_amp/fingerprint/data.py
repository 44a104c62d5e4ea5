"""The file of fingerprints of every entry on the pinned releases of torch, one line for each entry.

Lines are ``NAME WHERE: FINGERPRINT``. WHERE names the devices, dtypes and releases for which a line holds, and is empty
if it holds for all; the header of the file explains it.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from packaging.version import Version

from pytest_amp.data_files import releases
from pytest_amp.record.unseen import NOT, without_counts

#: The data file's path in failures.
DATA_FILE = "pytest_amp/fingerprint/fingerprints.txt"
DTYPES = ("bf16", "fp16")
#: Prefix of a device type: fingerprints of a real device that differ from the fake device's.
REAL = "real-"
_MEASURED = "measured "
_REASON = "  # "

#: A device type (``cuda``; ``real-cuda``), a precision (``bf16``) and a release (``2.13``).
Place = tuple[str, str, str]


def short_release(version: str) -> str:
    """Shorten ``2.13.0+cu130`` to ``2.13``."""
    return ".".join(map(str, releases.release_of(version)))


def _order(release: str) -> Version:
    return Version(release)


@dataclass
class Fingerprints:
    """All known fingerprints. ``measured`` has the releases by device type, oldest first.

    A real device has a separate device type, ``real-cuda``. ``reasons`` are the comments behind lines, by name and
    devices: ``("nn.GRU", "real-cuda")``.
    """

    measured: dict[str, list[str]] = field(default_factory=dict)
    known: dict[str, dict[Place, str]] = field(default_factory=dict)
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)

    def covers(self, device_type: str, version: str, *, real: bool = False) -> bool:
        """Return whether the fingerprints of exactly this release are known."""
        return short_release(version) in self.measured.get(REAL * real + device_type, ())

    def expected(self, device_type: str, dtype: str, version: str, *, real: bool = False) -> dict[str, set[str | None]]:
        """Return the accepted fingerprints of each entry on ``version``; None stands for a missing entry.

        For a release that was not measured, the fingerprints of the releases before and after it are accepted; for a
        newer one than all, those of the last. The result is empty for an unknown device type. Raises ValueError for an
        older release than all. ``real`` is a real accelerator: the fingerprints of fake devices hold for it, too,
        except for entries with a line of their own. On a release that was not measured on a real device, both are
        accepted for those entries, and so are both at once: a new kernel may support a part of the samples, as cuFFT
        does in float16 by size.
        """
        measured = self.measured.get(device_type, [])
        if not measured or (real and REAL + device_type not in self.measured):
            return {}
        if _order(short_release(version)) < _order(measured[0]):
            raise ValueError(f"fingerprints of {device_type} are known from torch {measured[0]} on, this is {version}")
        expected: dict[str, set[str | None]] = {}
        around = _around(measured, version)
        # A real device may raise in float32 where a fake one does not, so that its numbers of samples differ.
        plain = without_counts if real else str
        real_around = _around(self.measured[REAL + device_type], version) if real else ()
        for name, places in self.known.items():
            values = {places.get((device_type, dtype, release)) for release in around}
            texts = {None if text is None else plain(text) for text in values}
            real_values = {places.get((REAL + device_type, dtype, release)) for release in real_around} - {None}
            if real_values and self.covers(device_type, version, real=True):
                texts = real_values
            elif real_values:
                texts = real_values | texts | _mixtures(real_values, texts)
            if texts != {None}:
                expected[name] = texts
        return expected

    def replace(
        self, device_type: str, dtype: str, version: str, observed: Mapping[str, str], *, part: bool = False
    ) -> None:
        """Replace the fingerprints of ``version`` on a device type, ``part`` only those of entries in ``observed``.

        ``real-cuda`` takes the fingerprints of a real device that differ; raises ValueError if the release is not yet
        known for the fake device.
        """
        release = short_release(version)
        place = (device_type, dtype, release)
        if device_type.startswith(REAL) and release not in self.measured.get(device_type.removeprefix(REAL), ()):
            raise ValueError(f"torch {release} has to be read on fake:{device_type.removeprefix(REAL)} first")
        releases = {*self.measured.get(device_type, ()), release}
        self.measured[device_type] = sorted(releases, key=_order)
        for name, places in self.known.items():
            if not part or name in observed:
                places.pop(place, None)
        for name, text in observed.items():
            self.known.setdefault(name, {})[place] = text
        self.known = {name: places for name, places in self.known.items() if places}


def _mixtures(real: Iterable[str | None], fake: Iterable[str | None]) -> set[str | None]:
    """Return the texts, without counts, that have the patterns of a real and of a fake device's fingerprint."""
    return {
        "; ".join(sorted({pattern for text in pair for pattern in without_counts(text).split("; ")}))
        for pair in itertools.product(_with_patterns(real), _with_patterns(fake))
    }


def _with_patterns(texts: Iterable[str | None]) -> list[str]:
    return [text for text in texts if text is not None and not text.startswith(NOT)]


def _around(measured: Sequence[str], version: str) -> tuple[str, str]:
    """Return the measured releases before and after a version: itself twice if measured, at an end the nearest."""
    release = _order(short_release(version))
    before = [release_text for release_text in measured if _order(release_text) <= release]
    after = [release_text for release_text in measured if _order(release_text) >= release]
    return (before or after)[-1 if before else 0], (after or before)[0 if after else -1]


# Reading


def parse(text: str) -> Fingerprints:
    """Parse the fingerprints in ``text``. Raises ValueError naming the malformed line."""
    fingerprints = Fingerprints()
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        if line.startswith(_MEASURED):
            device_type, *releases = line.removeprefix(_MEASURED).split()
            fingerprints.measured[device_type] = releases
            continue
        head, colon, fingerprint = line.partition(": ")
        name, *where = head.split()
        if not colon or not fingerprint:
            raise ValueError(f"{DATA_FILE}, line {number}: {line!r} is not NAME WHERE: FINGERPRINT")
        fingerprint, comment, reason = fingerprint.partition(_REASON)
        if comment:
            fingerprints.reasons[name, _devices(where)] = reason
        for place in _places(where, fingerprints.measured, f"{DATA_FILE}, line {number}"):
            if place in fingerprints.known.setdefault(name, {}):
                raise ValueError(f"{DATA_FILE}, line {number}: {name} on {'-'.join(place)} is given twice")
            fingerprints.known[name][place] = fingerprint
    return fingerprints


def _devices(where: Sequence[str]) -> str:
    """Return the word for devices among the words of WHERE."""
    words = [word for word in where if "=" not in word and word not in DTYPES]
    return words[0] if words else ""


def _places(where: Sequence[str], measured: Mapping[str, Sequence[str]], line: str) -> Iterable[Place]:
    devices: list[str] = [device for device in measured if not device.startswith(REAL)]
    dtypes: list[str] = list(DTYPES)
    bounds: dict[str, str] = {}
    for word in where:
        key, equals, value = word.partition("=")
        if equals and key in ("since", "until") and re.fullmatch(r"[0-9]+\.[0-9]+", value):
            bounds[key] = value
        elif word in DTYPES:
            dtypes = [word]
        elif all(device in measured for device in word.split(",")):
            devices = word.split(",")
        else:
            raise ValueError(f"{line}: {word!r} is not a device, a dtype, since= or until=")
    for device in devices:
        for release in measured[device]:
            if _holds(release, bounds):
                yield from ((device, dtype, release) for dtype in dtypes)


def _holds(release: str, bounds: Mapping[str, str]) -> bool:
    order = _order(release)
    return not ("since" in bounds and order < _order(bounds["since"])) and not (
        "until" in bounds and order > _order(bounds["until"])
    )


# Writing

_HEADER = """\
# The output dtypes of every operator (op_db) and module (module_db) that torch's own tests know.
#
# NAME WHERE: FINGERPRINT
#
# A fingerprint has the different patterns that an entry's samples gave, with a semicolon between them, and behind each
# of several its number of samples (x8; releases that were measured before samples were counted have none). A pattern is
# what a sample returned with autocast off and on, for float32 and for low-precision inputs:
#
#     off, float32    off, low  |  on, float32    on, low        "| =": on is as off
#
# low is the autocast dtype, bfloat16 or float16; fp32 is float32. Where outputs have different dtypes, all are given.
# error: it raised; banned: autocast refused it; none: no tensor came out; lost: it brought the process down;
# ?: this machine or a fake device cannot tell. A module has float32 parameters under autocast, and parameters of the
# inputs' dtype without. "not:" is an entry that has no fingerprint there, and why.
#
# WHERE: devices (all if there are none), bf16 or fp16 (else both), since= and until= the first and the last measured
# release. cuda, xpu, mps and mtia are read under fake tensors; real-cuda is where a real device gives something else
# in the releases that were measured on one, with its reason behind two spaces and a #.
#
# Made by tools.fingerprints.update and reviewed: see docs/reference/fingerprint.md.
"""


def write(fingerprints: Fingerprints) -> str:
    """Return the text of the file: sorted, and the same for the same fingerprints."""
    lines = [f"{_MEASURED}{device} {' '.join(releases)}" for device, releases in fingerprints.measured.items()]
    for name in sorted(fingerprints.known):
        for where, text in _lines(fingerprints.known[name], fingerprints.measured):
            reason = fingerprints.reasons.get((name, _devices(where.split())))
            lines.append(f"{name}{where}: {text}" + (f"{_REASON}{reason}" if reason else ""))
    return "\n".join([_HEADER, *lines]) + "\n"


#: A fingerprint that holds from one measured release to another: since, until, text.
_Segment = tuple[str | None, str | None, str]


def _lines(places: Mapping[Place, str], measured: Mapping[str, Sequence[str]]) -> Iterable[tuple[str, str]]:
    everywhere = {device for device in measured if not device.startswith(REAL)}
    devices = sorted(measured, key=lambda device: device.startswith(REAL))
    segments = {
        (device, dtype): tuple(_segments(places, device, dtype, measured[device]))
        for device in devices
        for dtype in DTYPES
    }
    by_content: dict[tuple[bool, tuple[tuple[_Segment, ...], ...]], list[str]] = {}
    for device in devices:
        content = tuple(segments[device, dtype] for dtype in DTYPES)
        if any(content):
            # A real device has a separate line, and its reason.
            by_content.setdefault((device.startswith(REAL), content), []).append(device)
    for (_, content), group in by_content.items():
        where = "" if set(group) == everywhere else f" {','.join(group)}"
        same = len(set(content)) == 1
        for dtype, actual in (
            [("", content[0])] if same else [(f" {d}", c) for d, c in zip(DTYPES, content, strict=True)]
        ):
            for since, until, text in actual:
                bounds = (f" since={since}" if since else "") + (f" until={until}" if until else "")
                yield f"{where}{dtype}{bounds}", text


def _segments(places: Mapping[Place, str], device: str, dtype: str, releases: Sequence[str]) -> Iterable[_Segment]:
    column = [(release, places.get((device, dtype, release))) for release in releases]
    for text, group in itertools.groupby(column, key=lambda cell: cell[1]):
        releases_of_group = [release for release, _ in group]
        if text is not None:
            yield (
                None if releases_of_group[0] == releases[0] else releases_of_group[0],
                None if releases_of_group[-1] == releases[-1] else releases_of_group[-1],
                text,
            )


def load(path: Path | None = None) -> Fingerprints:
    """Load the fingerprints in ``path``, by default those of the package."""
    return _carried() if path is None else parse(path.read_text(encoding="utf-8"))


@functools.cache
def _carried() -> Fingerprints:
    return parse(resources.files("pytest_amp.fingerprint").joinpath("fingerprints.txt").read_text(encoding="utf-8"))
