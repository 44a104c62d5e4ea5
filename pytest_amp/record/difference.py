"""What differs between two records, and what that means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_amp.record.compare import compare, unfair
from pytest_amp.record.file import Record
from pytest_amp.record.observation import EXACT, Kind, Observation, Value, Verdict, canonical

#: Worst first: the order in which differences are shown.
ORDER = (Verdict.REGRESSED, Verdict.CHANGED, Verdict.GONE, Verdict.INCONCLUSIVE, Verdict.NEW, Verdict.IMPROVED)
#: What fails a comparison unless it is asked for less or more.
FAILING = frozenset({Verdict.REGRESSED, Verdict.CHANGED, Verdict.GONE})


@dataclass(frozen=True)
class Difference:
    """Two records compared.

    ``observations`` are those of ``new`` that are not the same as before, each with the old value as its
    baseline, and those of ``old`` that have gone, in the order of ORDER and then of their keys. ``same``
    and ``unjudged`` (ratios, times and sizes) count the others. ``not_run`` counts what ``old`` has of
    tests that ``new`` did not run. ``unfair`` says why errors could not be compared, by device.
    """

    old: Record
    new: Record
    observations: tuple[Observation, ...]
    same: int
    unjudged: int
    not_run: int
    unfair: dict[str, str]

    def of(self, verdict: Verdict) -> list[Observation]:
        """Those that became ``verdict``."""
        return [observation for observation in self.observations if observation.verdict is verdict]

    def provenance(self) -> Iterator[tuple[str, Value, Value]]:
        """What differs in where the records come from, but for date and command: a name, what it was, what it is."""
        before, now = _flat(self.old.provenance), _flat(self.new.provenance)
        for name in sorted(before.keys() | now.keys()):
            if name not in ("date", "command", "baseline") and canonical(before.get(name)) != canonical(now.get(name)):
                yield name, before.get(name), now.get(name)


def difference(old: Record, new: Record) -> Difference:
    """Compare ``new`` with ``old`` key by key, as a run with ``old`` as its baseline does."""
    before, now = old.by_key(), new.by_key()
    devices = {observation.target[0] for observation in old.observations}
    reasons = {device: reason for device in devices if (reason := unfair(old.provenance, new.provenance, device))}
    found: list[Observation] = []
    same = unjudged = 0
    for key, observation in now.items():
        compared = compare(observation, before.get(key), fair=observation.target[0] not in reasons)
        if compared.verdict in ORDER:
            found.append(compared)
        elif compared.kind in EXACT or compared.kind is Kind.ERROR:
            same += 1
        else:
            unjudged += 1
    ran = {(observation.test, observation.target) for observation in new.observations}
    missing = [observation for key, observation in before.items() if key not in now]
    gone = [observation for observation in missing if (observation.test, observation.target) in ran]
    found += [_gone(observation) for observation in gone]
    found.sort(key=lambda observation: (ORDER.index(observation.verdict), observation.key))
    return Difference(old, new, tuple(found), same, unjudged, len(missing) - len(gone), reasons)


def _gone(observation: Observation) -> Observation:
    return Observation(
        observation.key,
        observation.kind,
        None,
        observation.unit,
        verdict=Verdict.GONE,
        baseline=observation.value,
        test=observation.test,
    )


def _flat(provenance: object, prefix: str = "") -> dict[str, Value]:
    """A provenance with one value a name: ``devices.cuda.cudnn``."""
    flat: dict[str, Value] = {}
    for name, value in provenance.items() if isinstance(provenance, dict) else ():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
