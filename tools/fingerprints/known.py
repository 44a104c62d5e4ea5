"""Known dtypes of an entry that a run could not observe."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from packaging.version import Version

from pytest_amp.fingerprint.data import Fingerprints, short_release
from pytest_amp.record.unseen import loses


def not_observed(expected: Mapping[str, Collection[str | None]], observed: Mapping[str, str]) -> dict[str, str]:
    """Return a line for each entry, by name, with known dtypes that cannot be observed now."""
    lines = {}
    for name, now in sorted(observed.items()):
        texts = sorted(text for text in expected.get(name, ()) if text is not None)
        if texts and all(loses(now, text) for text in texts):
            lines[name] = f"{name}: {' or '.join(texts)} -> {now}"
    return lines


def latest(known: Fingerprints, device_type: str, dtype: str, entry: str, version: str) -> str:
    """Return the known fingerprint of an entry, of the last release up to ``version`` that has one."""
    releases = [
        release for release in known.measured[device_type] if Version(release) <= Version(short_release(version))
    ]
    places = known.known[entry]
    return next(places[place] for release in reversed(releases) if (place := (device_type, dtype, release)) in places)
