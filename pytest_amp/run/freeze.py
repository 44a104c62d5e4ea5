"""Freeze of a session: its record, and the result that the reports show."""

from __future__ import annotations

from collections import Counter

from pytest_amp.data_files.releases import installed_torch
from pytest_amp.known.rows import Known
from pytest_amp.record import Baseline, Failure, Record, Value, from_baseline, keys_of
from pytest_amp.run.provenance import own_provenance
from pytest_amp.run.result import AcceptedFault, FailedTest, Run
from pytest_amp.run.session import AmpSession, Selection
from pytest_amp.run.tally import Tally

#: Maximum length of a failure's reason in a record: one line, the essential part first.
LONGEST = 300


def freeze(session: AmpSession) -> Run:
    """Return the current state of all parts of ``session`` as a result.

    The additions of the hook pytest_amp_provenance are missing in a run that writes no file.
    """
    record = session.conclusion.record or record_of(
        session.tally,
        session.selection,
        own_provenance(session.config, session.options, session.facts),
        complete=not session.messages.problems,
    )
    tally, selection, conclusion, options = session.tally, session.selection, session.conclusion, session.options
    baseline, problems = session.baseline, session.messages.problems
    return Run(
        record=record,
        torch=installed_torch(),
        baseline=options.baseline,
        difference=None if baseline is None else from_baseline(baseline, record, conclusion.gone),
        problems=tuple(problems),
        notes=tuple(session.messages.notes),
        failures=_failures(tally),
        counts={place: Counter(counts) for place, counts in tally.outcomes.items()},
        deselected=dict(selection.deselected),
        skips=sum(tally.reasons.values(), Counter()),
        skipped_modules={name: reason for name, (_, reason) in selection.skipped_modules.items()},
        speed=session.targets.speed_reason,
        known=tuple(_accepted(fault, tally, baseline) for fault in options.known),
        tests={key: test for key, (test, _) in tally.observations.items()},
        earlier_times=tuple(session.facts.earlier_times) if selection.active else (),
        written=tuple(conclusion.written),
        accepted=conclusion.accepted,
    )


def _failures(tally: Tally) -> tuple[FailedTest, ...]:
    """Return the failures in the order of the reports; a test whose teardown fails, too, has two."""
    texts = tally.texts
    return tuple(FailedTest(test, *texts[test][:2], reason, texts[test][2]) for test, reason in tally.failures)


def _accepted(fault: Known, tally: Tally, baseline: Baseline | None) -> AcceptedFault:
    counts = tally.known.get(fault.name)
    may_exist = (
        baseline is None
        or any("::test" in key for key in fault.keys)  # the key of a test, of which a record has no observation
        or any(fault.matches(key) for item in baseline.record.observations for key in keys_of(item))
    )
    return AcceptedFault(fault, counts["xfailed"] if counts else None, may_exist)


def record_of(tally: Tally, selection: Selection, provenance: dict[str, Value], *, complete: bool) -> Record:
    """Return the observations of ``tally`` and its failed tests as a record."""
    summary: dict[str, Value] = {
        f"{target} {family}": dict(sorted(counts.items()))
        for (target, family), counts in sorted(tally.outcomes.items())
    }
    ran: dict[str, list[str]] = {}
    for target, family, test in sorted(tally.whole(selection.created)):
        ran.setdefault(f"{target} {family}", []).append(test)
    return Record(
        tally.observed(),
        provenance,
        summary,
        complete,
        {place: tuple(tests) for place, tests in ran.items()},
        tuple(Failure(key, reason[:LONGEST]) for key, reason in tally.failed.items()),
    )
