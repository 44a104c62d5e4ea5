"""Differences between two records, and their meaning."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pytest_amp.record.baseline import Baseline
from pytest_amp.record.compare import judged, revisions
from pytest_amp.record.file import Failure, Record
from pytest_amp.record.observation import SELECTED, Kind, Observation, Value, Verdict, canonical

#: Order in which differences are shown, worst first.
ORDER = (
    Verdict.FAILED,
    Verdict.REGRESSED,
    Verdict.CHANGED,
    Verdict.GONE,
    Verdict.INCONCLUSIVE,
    Verdict.OBSERVED,
    Verdict.NEW,
    Verdict.IMPROVED,
    Verdict.FIXED,
)
#: Verdicts that fail a comparison by default.
FAILING = frozenset({Verdict.FAILED, Verdict.REGRESSED, Verdict.CHANGED, Verdict.GONE, Verdict.FIXED})
#: Values of the observation that represents a test.
PASSES, FAILS = "passes", "fails"


class Gap(enum.Enum):
    """Reason why a comparison is incomplete: the absence of differences then proves nothing."""

    UNCOMPARED = "uncompared"
    INCOMPLETE = "incomplete"
    NOT_RUN = "not_run"


@dataclass(frozen=True)
class Difference:
    """Comparison of two records.

    ``observations`` contains, in the order of ORDER:

    - the observations of ``new`` that differ, each with the old value as its baseline,
    - the observations of ``old`` that are gone,
    - a test that fails only in ``new``, or only in ``old``, as an observation of kind ``state``.

    The remaining observations of ``new`` are counted: as ``same`` if they were compared, as ``unjudged`` if they are
    only recorded, and as ``not_run_before`` if ``old`` lacks their test. ``not_run`` counts observations of ``old``
    whose test ``new`` did not run with all its parameters, and ``failed_in_both`` counts tests.

    ``unfair`` maps a device to the reason why its values could not be compared. ``gaps`` lists what the comparison does
    not cover: a device and dtype on which the records share nothing, a run that was interrupted or had problems beyond
    its tests, and tests that are counted in ``not_run``. ``incomparable`` has the differing observations of families
    whose tests have another revision: the difference may come from the tests instead of torch.
    """

    old: Record
    new: Record
    observations: tuple[Observation, ...]
    same: int
    unjudged: int
    not_run: int
    not_run_before: int
    failed_in_both: int
    unfair: dict[str, str]
    gaps: dict[Gap, tuple[str, ...]]
    incomparable: tuple[Observation, ...] = ()

    def of(self, verdict: Verdict) -> list[Observation]:
        """Return the observations with ``verdict``."""
        return [observation for observation in self.observations if observation.verdict is verdict]

    def groups(self) -> dict[Verdict, list[Observation]]:
        """Return the observations by verdict, in the order of ORDER."""
        return {verdict: self.of(verdict) for verdict in ORDER}

    @property
    def revised(self) -> dict[str, tuple[str, str]]:
        """Return the families with different test revisions, with both revisions."""
        return revisions(self.old.provenance, self.new.provenance)

    def provenance(self) -> Iterator[tuple[str, Value, Value]]:
        """Yield the differing entries of both provenances, except date and command: name, old value, new value."""
        before, now = flattened(self.old.provenance), flattened(self.new.provenance)
        for name in sorted(before.keys() | now.keys()):
            if name.partition(".")[0] not in ("date", "command", "baseline", "revisions") and canonical(
                before.get(name)
            ) != canonical(now.get(name)):
                yield name, before.get(name), now.get(name)


def difference(old: Record, new: Record) -> Difference:
    """Compare ``new`` with ``old`` key by key, as a run with ``old`` as its baseline does."""
    baseline = Baseline(old, new.provenance)
    before, now = old.by_key(), new.by_key()
    devices = {observation.target[0] for observation in old.observations}
    reasons = {device: reason for device in devices if (reason := baseline.unfair(device))}
    differing: list[Observation] = []
    same = unjudged = not_run_before = 0
    for key, observation in now.items():
        if key not in before and not old.saw(observation):
            not_run_before += 1
            continue
        # The verdict in the record came from a comparison with the baseline of that run.
        compared = baseline.compare(replace(observation, verdict=Verdict.PASS, baseline=None), now)
        if compared.verdict in ORDER:
            differing.append(compared)
        elif judged(compared):
            same += 1
        else:
            unjudged += 1
    missing = [observation for key, observation in before.items() if key not in now]
    gone = [observation for observation in missing if new.ran_whole(observation)]
    differing += [as_gone(observation) for observation in gone]
    differing += _tests(old, new)
    of_tests = (Verdict.FAILED, Verdict.FIXED)
    revised = baseline.revised
    incomparable = [
        observation
        for observation in differing
        if observation.family in revised and observation.verdict not in of_tests
    ]
    differing = [
        observation for observation in differing if observation.family not in revised or observation.verdict in of_tests
    ]
    differing.sort(key=lambda observation: (ORDER.index(observation.verdict), observation.key))
    both = len({failure.key for failure in old.failures} & {failure.key for failure in new.failures})
    not_run = len(missing) - len(gone)
    gaps = {
        Gap.UNCOMPARED: (*_uncompared(old, new), *_revised(revised, incomparable)),
        Gap.INCOMPLETE: tuple(_incomplete(old, new)),
        Gap.NOT_RUN: tuple(_not_run(new, missing)),
    }
    gaps = {gap: lines for gap, lines in gaps.items() if lines}
    return Difference(
        *(old, new, tuple(differing), same, unjudged, not_run, not_run_before, both, reasons, gaps, tuple(incomparable))
    )


def from_baseline(baseline: Baseline, run: Record, gone: Iterable[Observation]) -> Difference:
    """Return the difference of a run from its baseline, with the verdicts that the run has given its observations.

    ``gone`` are the baseline's observations whose tests passed with all parameters and no longer observe them. Failed
    tests are not included. There are no gaps: an incomplete comparison is a problem of the run. Observations with the
    same verdict are in the order of the run.
    """
    observations = [*run.observations, *map(as_gone, gone)]
    differing = [observation for verdict in ORDER for observation in observations if observation.verdict is verdict]
    same = sum(judged(observation) for observation in run.observations if observation.verdict not in ORDER)
    unjudged = sum(not judged(observation) for observation in run.observations if observation.verdict not in ORDER)
    missing = baseline.record.by_key().keys() - {observation.key for observation in observations}
    devices = dict.fromkeys(observation.target[0] for observation in run.observations)
    reasons = {device: reason for device in devices if (reason := baseline.unfair(device))}
    return Difference(
        *(baseline.record, run, tuple(differing), same, unjudged, len(missing)),
        not_run_before=0,
        failed_in_both=0,
        unfair=reasons,
        gaps={},
    )


def _revised(revised: Mapping[str, tuple[str, str]], incomparable: Iterable[Observation]) -> Iterator[str]:
    """Yield one line for all families that have another revision and differing observations."""
    counts: dict[str, int] = {}
    for observation in incomparable:
        counts[observation.family] = counts.get(observation.family, 0) + 1
    if counts:
        counted = ", ".join(f"{name} {count} ({' -> '.join(revised[name])})" for name, count in sorted(counts.items()))
        yield (
            "the tests of these families changed between the records, so that "
            f"changed observations ({sum(counts.values())}) cannot be attributed to torch: {counted}; "
            "record the earlier torch with the later tests"
        )


def _uncompared(old: Record, new: Record) -> Iterator[str]:
    """Yield a line for each selected device and dtype of ``new`` that ``old`` lacks; one line if nothing is shared."""
    before = old.by_key()
    shared = [observation for observation in new.observations if observation.key in before]
    if not any(judged(observation) and judged(before[observation.key]) for observation in shared):
        yield f"the records share no fact that is judged: {_targets(old)} before, {_targets(new)} now"
        return
    compared = {observation.target for observation in shared}
    targets = sorted({observation.target for observation in new.observations} - compared)
    missing = [f"{device}-{dtype}" for device, dtype in targets if dtype in SELECTED]
    if missing:
        yield f"nothing on {', '.join(missing)} could be compared: the old record has {_targets(old)}"


def _targets(record: Record) -> str:
    return ", ".join(sorted({entry.place for entry in record.entries})) or "nothing"


def _incomplete(old: Record, new: Record) -> Iterator[str]:
    for name, record in (("old", old), ("new", new)):
        if not record.complete:
            yield f"the {name} run was interrupted, or had problems beyond its tests"


def _not_run(new: Record, missing: Iterable[Observation]) -> Iterator[str]:
    """Yield a line for each family with observations whose tests ``new`` did not run with all parameters."""
    targets: dict[str, list[str]] = {}
    for observation in missing:
        if not new.ran_whole(observation):
            targets.setdefault(observation.family, []).append(observation.place)
    for family, target in sorted(targets.items()):
        places = ", ".join(sorted(set(target)))
        yield f"{family}: the new run did not run all tests of {len(target)} facts of the old record ({places})"


def as_gone(observation: Observation) -> Observation:
    """Return an observation that is gone: its old value is the baseline, and it has no new value."""
    return Observation(
        observation.key,
        observation.kind,
        None,
        observation.unit,
        verdict=Verdict.GONE,
        baseline=observation.value,
        test=observation.test,
    )


def _tests(old: Record, new: Record) -> Iterator[Observation]:
    """Yield tests that fail and did not before, with the reason, and tests that failed and pass."""
    before, now = ({failure.key: failure for failure in record.failures} for record in (old, new))
    for key, failure in now.items():
        if key not in before:
            verdict = Verdict.FIXED if failure.is_fixed else Verdict.FAILED
            yield _test(failure, f"{FAILS}: {failure.why}", PASSES if old.ran_whole(failure) else None, verdict)
    for key, failure in before.items():
        if key not in now and new.ran_whole(failure):
            yield _test(failure, PASSES, f"{FAILS}: {failure.why}", Verdict.IMPROVED)


def _test(failure: Failure, value: str, baseline: str | None, verdict: Verdict) -> Observation:
    return Observation(failure.key, Kind.STATE, value, verdict=verdict, baseline=baseline, test=failure.test)


def families(observations: Iterable[Observation]) -> dict[str, dict[Verdict, int]]:
    """Count the verdicts in each family, families in alphabetical order."""
    counts: dict[str, dict[Verdict, int]] = {}
    for observation in observations:
        family = counts.setdefault(observation.family, {})
        family[observation.verdict] = family.get(observation.verdict, 0) + 1
    return dict(sorted(counts.items()))


def flattened(provenance: Mapping[str, Value], prefix: str = "") -> dict[str, Value]:
    """Return a provenance with one value for each dotted name: ``devices.cuda.cudnn``."""
    flat: dict[str, Value] = {}
    for name, value in provenance.items():
        if isinstance(value, dict):
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
