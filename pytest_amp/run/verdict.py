"""Verdict on a run: the problems beyond its tests, and its exit status."""

from __future__ import annotations

import pytest

from pytest_amp.record import Verdict
from pytest_amp.run.controller import check_exits
from pytest_amp.run.files import accept, write_files
from pytest_amp.run.freeze import record_of
from pytest_amp.run.provenance import whole_provenance
from pytest_amp.run.session import AmpSession

#: Options of pytest that collect tests without running any.
RUNS_NOTHING = ("collectonly", "setuponly", "setupplan", "showfixtures", "show_fixtures_per_test", "cacheshow")


def finish(session: AmpSession, exitstatus: int) -> int:
    """Judge the whole run, write the requested files, and return the exit status.

    It is 4 for a usage error, and 1 if a status of 0 would be wrong.
    """
    session.finishing = True
    if session.usage_errors:
        return int(pytest.ExitCode.USAGE_ERROR)
    if any(getattr(session.config.option, name, False) for name in RUNS_NOTHING):
        return exitstatus
    check_exits(session)
    _judge(session, exitstatus)
    options, accepts = session.options, session.options.accept and exitstatus in (0, 1)
    if options.record is not None or options.report or accepts:
        provenance = whole_provenance(session)
        complete = exitstatus in (0, 1, 5) and not session.problems
        session.record = record_of(session, provenance, complete=complete)
    has_run = exitstatus not in (4, 5) or any(True for _ in session.observed())
    if options.record is not None and not has_run:
        session.notes.append(f"{options.record} was not written: no test ran")
    write_files(session, with_record=has_run)
    if accepts:
        accept(session)
    return 1 if session.problems and exitstatus in (0, 5) else exitstatus


def _judge(session: AmpSession, exitstatus: int) -> None:
    """Note the problems of a run that has ended with ``exitstatus``."""
    tally, pytest_options = session.tally, session.config.option
    if exitstatus == 0 and session.options.explicit and not (session.collection_ended or session.finished_nodes):
        session.problem("the run was ended as a green one before its tests were collected (pytest.exit, say)")
    # A run that was interrupted (2) or broke (3) is red already; tests that it did not reach are no problem.
    session.problems += tally.unexecuted(session.selected if exitstatus in (0, 1, 5) else {}) + tally.clashes()
    if exitstatus == 0:
        # A run that stopped at a failure (1) is red already.
        session.problems += tally.unreported(session.selected)
    session.problems += tally.fixed(session.options.known)
    if not (pytest_options.keyword or pytest_options.markexpr or getattr(pytest_options, "lf", False)):
        # With one of these options, it is unknown whether a test of a skipped module was requested.
        session.problems += tally.unseen(session.skipped_modules)
    if session.baseline is not None:
        baseline = session.baseline.record.observations
        session.gone = tally.gone(baseline, session.created)
        session.problems += tally.uncompared(baseline)
        if not session.options.accept:
            session.problems += tally.swallowed()
    if session.options.strict:
        session.problems += [f"gone from the baseline: {observation.key}" for observation in session.gone]
        session.problems += tally.inconclusive()
        session.problems += [f"inconclusive: {o.key}" for o in session.observed() if o.verdict is Verdict.INCONCLUSIVE]
