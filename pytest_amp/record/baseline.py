"""Baseline of a run: an earlier record, and the comparison of one observation with it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_amp.record.compare import compare, judged, revisions, unfair
from pytest_amp.record.file import Record
from pytest_amp.record.observation import Observation, Value


@dataclass(frozen=True)
class Baseline:
    """Record of an earlier run, and the provenance ``now`` of the run that is compared with it.

    The test that makes an observation, the comparison of two records and the floor of a speedup all use this class, so
    that they agree on the verdict of two values. ``now`` may be a view of a provenance that is still being collected;
    it must be complete before the first comparison on a device.
    """

    record: Record
    now: Mapping[str, Value]

    @functools.cached_property
    def _by_key(self) -> dict[str, Observation]:
        return self.record.by_key()

    @functools.cached_property
    def _unfair(self) -> dict[str, str | None]:
        return {}

    @functools.cached_property
    def revised(self) -> dict[str, tuple[str, str]]:
        """Return the families with another test revision than in the record, with both revisions."""
        return revisions(self.record.provenance, self.now)

    @property
    def torch(self) -> Value:
        """Return the version of torch with which the record was made."""
        return self.record.provenance.get("torch", "unknown")

    def before(self, key: str) -> Observation | None:
        """Return the record's observation with ``key``."""
        return self._by_key.get(key)

    def unfair(self, device: str) -> str | None:
        """Return why values on the device with this key cannot be compared; None if they can."""
        if device not in self._unfair:  # requested for each observation, and equal for all
            self._unfair[device] = unfair(self.record.provenance, self.now, device)
        return self._unfair[device]

    def compare(self, observation: Observation) -> Observation:
        """Return ``observation`` with the earlier value and the verdict that follows from it."""
        fair = self.unfair(observation.target[0]) is None
        return compare(observation, self.before(observation.key), fair=fair)

    def standard(self, key: str) -> Observation | None:
        """Return the earlier observation that is the standard for a new one.

        Return None if there is none, or if a comparison would be inconclusive: the hardware differs, or the earlier
        value was not judged.
        """
        before = self.before(key)
        if before is None or not judged(before) or self.unfair(before.target[0]) is not None:
            return None
        return before
