"""Baseline of a run: an earlier record, and the comparison of one observation with it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from pytest_amp.record import times
from pytest_amp.record.compare import compare, judged, revisions, unfair
from pytest_amp.record.file import Record
from pytest_amp.record.observation import Kind, Observation, Value, Verdict

_NOTHING: Mapping[str, Observation] = MappingProxyType({})


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

    def compare(self, observation: Observation, run: Mapping[str, Observation] = _NOTHING) -> Observation:
        """Return ``observation`` with the earlier value and the verdict that follows from it.

        ``run`` has the observations of the same run by key: the conditions under which a time was measured, and the
        times of a speedup. A speedup that is smaller because float32 became faster, while autocast's time is no longer
        than before on the same card, has IMPROVED.
        """
        fair, before = self.unfair(observation.target[0]) is None, self.before(observation.key)
        if before is None or not times.is_time(observation):
            compared = compare(observation, before, fair=fair)
            if compared.verdict is Verdict.REGRESSED and self._only_float32_gained(observation, run):
                return replace(compared, verdict=Verdict.IMPROVED)
            return compared
        return times.compare_time(observation, before, self.terms(observation.key, run), fair=fair)

    def _only_float32_gained(self, speedup: Observation, run: Mapping[str, Observation]) -> bool:
        """Return whether a speedup fell for float32's gain alone, by the times that ``run`` has beside it."""
        keys = times.times_keys(speedup.key)
        if speedup.kind is not Kind.RATIO or not all(key in run and judged(run[key]) for key in keys):
            return False
        # The verdict in a record came from a comparison with the baseline of that run.
        reference, candidate = (self.compare(replace(run[key], verdict=Verdict.PASS), run).verdict for key in keys)
        return times.only_float32_gained((self.terms(keys[0], run), self.terms(keys[1], run)), (reference, candidate))

    def terms(self, key: str, run: Mapping[str, Observation]) -> times.Terms:
        """Return the terms on which the time with ``key`` is compared; ``run`` as for ``compare``."""
        before, beside = self.before(key), times.conditions_key(key)
        if before is None:
            return times.Terms(None, "the baseline does not have it", absent=True)
        old, new = self.before(beside), run.get(beside)
        return times.terms(before, old.value if old else None, new.value if new else None)

    def standard(self, key: str) -> Observation | None:
        """Return the earlier observation that is the standard for a new one.

        Return None if there is none, or if a comparison would be inconclusive: the hardware differs, or the earlier
        value was not judged.
        """
        before = self.before(key)
        if before is None or not judged(before) or self.unfair(before.target[0]) is not None:
            return None
        return before
