"""What differs between two records, and what that means."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pytest_amp.record.compare import compare, judged, revisions, unfair
from pytest_amp.record.file import Failure, Record
from pytest_amp.record.observation import Kind, Observation, Value, Verdict, canonical

#: Worst first: the order in which differences are shown.
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
#: What fails a comparison unless it is asked for less or more.
FAILING = frozenset({Verdict.FAILED, Verdict.REGRESSED, Verdict.CHANGED, Verdict.GONE, Verdict.FIXED})
#: The values of what is no fact but a test.
PASSES, FAILS = "passes", "fails"
#: Precisions that a run selects; a suite runs a few checks in the others, which an older record need not have.
_SELECTED = ("bf16", "fp16")


class Gap(enum.Enum):
    """A reason why a comparison did not look at everything: without a difference it proves nothing."""

    UNCOMPARED = "uncompared"
    INCOMPLETE = "incomplete"
    NOT_RUN = "not_run"


@dataclass(frozen=True)
class Difference:
    """Two records compared.

    ``observations`` are those of ``new`` that are not the same as before, each with the old value as its
    baseline, those of ``old`` that have gone, and tests that fail now and did not before, or the other
    way about (kind ``state``, under a key of their own); in the order of ORDER and then of their keys.
    ``same`` and ``unjudged`` (what is only recorded) count the others. ``not_run`` counts what ``old`` has
    of tests that ``new`` did not run whole, ``not_run_before`` what ``new`` has of tests of which ``old``
    has nothing, ``failed_in_both`` tests. ``unfair`` says why numbers could not be compared, by device.
    ``gaps`` says in lines what the comparison did not look at: records that share nothing on a device and dtype,
    a run that was interrupted or ended red beyond its tests, tests of ``old`` that ``new`` did not run whole.
    ``incomparable`` has what became of facts of families whose tests are of another revision: it says nothing of torch.
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
        """Those that became ``verdict``."""
        return [observation for observation in self.observations if observation.verdict is verdict]

    def provenance(self) -> Iterator[tuple[str, Value, Value]]:
        """What differs in where the records come from, but for date and command: a name, what it was, what it is."""
        before, now = flattened(self.old.provenance), flattened(self.new.provenance)
        for name in sorted(before.keys() | now.keys()):
            if name.partition(".")[0] not in ("date", "command", "baseline", "revisions") and canonical(
                before.get(name)
            ) != canonical(now.get(name)):
                yield name, before.get(name), now.get(name)


def difference(old: Record, new: Record) -> Difference:
    """Compare ``new`` with ``old`` key by key, as a run with ``old`` as its baseline does."""
    before, now = old.by_key(), new.by_key()
    devices = {observation.target[0] for observation in old.observations}
    reasons = {device: reason for device in devices if (reason := unfair(old.provenance, new.provenance, device))}
    found: list[Observation] = []
    same = unjudged = not_run_before = 0
    for key, observation in now.items():
        if key not in before and not old.saw(observation):
            not_run_before += 1
            continue
        # What became of it in its own run, beside another baseline, is not what is asked here.
        plain = replace(observation, verdict=Verdict.PASS, baseline=None)
        compared = compare(plain, before.get(key), fair=observation.target[0] not in reasons)
        if compared.verdict in ORDER:
            found.append(compared)
        elif judged(compared):
            same += 1
        else:
            unjudged += 1
    missing = [observation for key, observation in before.items() if key not in now]
    gone = [observation for observation in missing if new.ran_whole(observation)]
    found += [as_gone(observation) for observation in gone]
    found += _tests(old, new)
    revised = revisions(old.provenance, new.provenance)
    of_tests = (Verdict.FAILED, Verdict.FIXED)
    incomparable = [each for each in found if each.family in revised and each.verdict not in of_tests]
    found = [each for each in found if each.family not in revised or each.verdict in of_tests]
    found.sort(key=lambda observation: (ORDER.index(observation.verdict), observation.key))
    both = len({each.key for each in old.failures} & {each.key for each in new.failures})
    not_run = len(missing) - len(gone)
    gaps = {
        Gap.UNCOMPARED: (*_uncompared(old, new), *_revised(revised, incomparable)),
        Gap.INCOMPLETE: tuple(_incomplete(old, new)),
        Gap.NOT_RUN: tuple(_not_run(new, missing)),
    }
    gaps = {gap: lines for gap, lines in gaps.items() if lines}
    return Difference(
        *(old, new, tuple(found), same, unjudged, not_run, not_run_before, both, reasons, gaps, tuple(incomparable))
    )


def _revised(revised: Mapping[str, tuple[str, str]], incomparable: Iterable[Observation]) -> Iterator[str]:
    """One line for all families that have another revision and facts that moved."""
    counts: dict[str, int] = {}
    for each in incomparable:
        counts[each.family] = counts.get(each.family, 0) + 1
    if counts:
        told = ", ".join(f"{name} {count} ({' -> '.join(revised[name])})" for name, count in sorted(counts.items()))
        yield (
            f"the tests of these families changed between the records, so that {sum(counts.values())} facts that moved "
            f"say nothing of torch: {told}; record the earlier torch with the later tests"
        )


def _uncompared(old: Record, new: Record) -> Iterator[str]:
    """A line for each selected device and dtype of ``new`` of which ``old`` has no fact; one if nothing is shared."""
    before = old.by_key()
    shared = [observation for observation in new.observations if observation.key in before]
    if not any(judged(observation) and judged(before[observation.key]) for observation in shared):
        yield f"the records share no fact that is judged: {_targets(old)} before, {_targets(new)} now"
        return
    compared = {observation.target for observation in shared}
    others = sorted({observation.target for observation in new.observations} - compared)
    missing = [f"{device}-{dtype}" for device, dtype in others if dtype in _SELECTED]
    if missing:
        yield f"nothing on {', '.join(missing)} could be compared: the old record has {_targets(old)}"


def _targets(record: Record) -> str:
    return ", ".join(sorted({"-".join(each.target) for each in (*record.observations, *record.failures)})) or "nothing"


def _incomplete(old: Record, new: Record) -> Iterator[str]:
    for name, record in (("old", old), ("new", new)):
        if not record.complete:
            yield f"the {name} run was interrupted, or ended red beyond its tests"


def _not_run(new: Record, missing: Iterable[Observation]) -> Iterator[str]:
    """A line for each family of which facts are missing whose test ``new`` did not run whole."""
    targets: dict[str, list[str]] = {}
    for observation in missing:
        if not new.ran_whole(observation):
            targets.setdefault(observation.family, []).append("-".join(observation.target))
    for family, each in sorted(targets.items()):
        places = ", ".join(sorted(set(each)))
        yield f"{family}: the new run did not run whole the tests of {len(each)} facts of the old record ({places})"


def as_gone(observation: Observation) -> Observation:
    """What has become of an earlier observation that no later one has: its value is the baseline's, and none now."""
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
    """Tests that fail and did not, with why; and tests that failed and pass."""
    before, now = ({each.key: each for each in record.failures} for record in (old, new))
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
    """How many of each verdict there are in each family, families in alphabetical order."""
    counts: dict[str, dict[Verdict, int]] = {}
    for observation in observations:
        family = counts.setdefault(observation.family, {})
        family[observation.verdict] = family.get(observation.verdict, 0) + 1
    return dict(sorted(counts.items()))


def flattened(provenance: Mapping[str, Value], prefix: str = "") -> dict[str, Value]:
    """A provenance with one value a name: ``devices.cuda.cudnn``."""
    flat: dict[str, Value] = {}
    for name, value in provenance.items():
        if isinstance(value, dict):
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
