"""Freeze of a session: its record, and the result that the reports show."""

from __future__ import annotations

from collections import Counter

from pytest_amp.data_files.releases import installed_torch
from pytest_amp.known.rows import Known
from pytest_amp.record import Difference, Failure, Record, Value, from_baseline, keys_of
from pytest_amp.run.provenance import own_provenance
from pytest_amp.run.result import AcceptedFault, FailedTest, Run
from pytest_amp.run.session import AmpSession

#: Maximum length of a failure's reason in a record: one line, the essential part first.
LONGEST = 300


def freeze(session: AmpSession) -> Run:
    """Return the current state of ``session`` as a result.

    The additions of the hook pytest_amp_provenance are missing in a run that writes no file.
    """
    record = session.record or record_of(session, own_provenance(session), complete=not session.problems)
    return Run(
        record=record,
        torch=installed_torch(),
        baseline=session.options.baseline,
        difference=_difference(session, record),
        problems=tuple(session.problems),
        notes=tuple(session.notes),
        failures=_failures(session),
        counts={place: Counter(counts) for place, counts in session.tally.outcomes.items()},
        deselected=dict(session.deselected),
        skips=sum(session.tally.reasons.values(), Counter()),
        skipped_modules={name: reason for name, (_, reason) in session.skipped_modules.items()},
        speed=session.speed_reason,
        known=tuple(_accepted(fault, session) for fault in session.options.known),
        tests={key: test for key, (test, _) in session.tally.observations.items()},
        earlier_times=tuple(session.earlier_times) if session.active else (),
        written=tuple(session.written),
        accepted=session.accepted,
    )


def _difference(session: AmpSession, record: Record) -> Difference | None:
    return None if session.baseline is None else from_baseline(session.baseline, record, session.gone)


def _failures(session: AmpSession) -> tuple[FailedTest, ...]:
    """Return the failures in the order of the reports; a test whose teardown fails, too, has two."""
    texts = session.tally.texts
    return tuple(FailedTest(test, *texts[test][:2], reason, texts[test][2]) for test, reason in session.tally.failures)


def _accepted(fault: Known, session: AmpSession) -> AcceptedFault:
    counts = session.tally.known.get(fault.name)
    may_exist = (
        session.baseline is None
        or any("::test" in key for key in fault.keys)  # the key of a test, of which a record has no observation
        or any(fault.matches(key) for item in session.baseline.record.observations for key in keys_of(item))
    )
    return AcceptedFault(fault, counts["xfailed"] if counts else None, may_exist)


def record_of(session: AmpSession, provenance: dict[str, Value], *, complete: bool) -> Record:
    """Return the observations of ``session`` and its failed tests as a record."""
    tally = session.tally
    summary: dict[str, Value] = {
        f"{target} {family}": dict(sorted(counts.items()))
        for (target, family), counts in sorted(tally.outcomes.items())
    }
    ran: dict[str, list[str]] = {}
    for target, family, test in sorted(tally.whole(session.created)):
        ran.setdefault(f"{target} {family}", []).append(test)
    return Record(
        tuple(session.observed()),
        provenance,
        summary,
        complete,
        {place: tuple(tests) for place, tests in ran.items()},
        tuple(Failure(key, reason[:LONGEST]) for key, reason in tally.failed.items()),
    )
