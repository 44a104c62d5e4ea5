"""Verdict on a run: the problems that no single test reports, and the exit status."""

from __future__ import annotations

import pytest

from pytest_amp.record import Verdict
from pytest_amp.run import machine_faults
from pytest_amp.run.controller import check_exits
from pytest_amp.run.files import accept, write_files
from pytest_amp.run.freeze import record_of
from pytest_amp.run.provenance import whole_provenance
from pytest_amp.run.session import AmpSession

#: Options of pytest that collect tests without running any.
RUNS_NOTHING = ("collectonly", "setuponly", "setupplan", "showfixtures", "show_fixtures_per_test", "cacheshow")


def finish(session: AmpSession, exitstatus: int) -> int:
    """Judge the whole run, write the requested files, and return the exit status.

    The status is 4 for a usage error. It is 1 if the run has problems and pytest's own status is 0, or 5 for no tests.
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
    has_run = exitstatus not in (4, 5) or any(session.observed())
    if options.record is not None and not has_run:
        session.notes.append(f"{options.record} was not written: no test ran")
    write_files(session, with_record=has_run)
    if accepts:
        accept(session)
    return 1 if session.problems and exitstatus in (0, 5) else exitstatus


def _judge(session: AmpSession, exitstatus: int) -> None:
    """Collect the problems of a run that ended with ``exitstatus`` in ``session.problems``."""
    tally, pytest_options = session.tally, session.config.option
    session.problems += machine_faults.problems(session)
    if exitstatus == 0 and session.options.explicit and not (session.collection_ended or session.finished_nodes):
        session.problem("the run was ended with status 0 before its tests were collected (pytest.exit, say)")
    # An interrupted run (2) and an internal error (3) fail anyway; the tests that they did not reach are not listed.
    session.problems += tally.unexecuted(session.selected if exitstatus in (0, 1, 5) else {}) + tally.clashes()
    if exitstatus == 0:
        # With failed tests (1) the run fails anyway, and it may have stopped at the first one (-x).
        session.problems += tally.unreported(session.selected)
    session.problems += tally.fixed(session.options.known)
    if not (pytest_options.keyword or pytest_options.markexpr or getattr(pytest_options, "lf", False)):
        # These options select tests by name, marker or last outcome: a skipped module may have none of the selected.
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
