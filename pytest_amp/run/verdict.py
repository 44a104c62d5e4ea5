"""Verdict on a run: the problems that no single test reports, and the exit status."""

from __future__ import annotations

import pytest

from pytest_amp.record import Verdict
from pytest_amp.run import machine_faults
from pytest_amp.run.controller import check_exits
from pytest_amp.run.files import accept, write_files
from pytest_amp.run.freeze import freeze, record_of
from pytest_amp.run.identity import INFO, key_of, target_of
from pytest_amp.run.provenance import own_provenance, whole_provenance
from pytest_amp.run.result import Run
from pytest_amp.run.session import AmpSession

#: Options of pytest that collect tests without running any.
RUNS_NOTHING = ("collectonly", "setuponly", "setupplan", "showfixtures", "show_fixtures_per_test", "cacheshow")


def finish(session: AmpSession, exitstatus: int) -> int:
    """Judge the whole run, write the requested files, and return the exit status.

    The status is 4 for a usage error. It is 1 if the run has problems and pytest's own status is 0, or 5 for no tests.
    """
    options, messages, conclusion = session.options, session.messages, session.conclusion
    session.ending.finishing = True
    if messages.usage_errors:
        return int(pytest.ExitCode.USAGE_ERROR)
    if any(getattr(session.config.option, name, False) for name in RUNS_NOTHING):
        return exitstatus
    check_exits(session.finished_nodes, session.ending.signal, messages)
    _judge(session, exitstatus)
    accepts = options.accept and exitstatus in (0, 1)
    has_run = exitstatus not in (4, 5) or any(session.tally.observed())
    if options.record is not None and not has_run:
        messages.note(f"{options.record} was not written: no test ran")
    if options.record is not None or options.report or accepts:
        facts = own_provenance(session.config, options, session.facts)
        provenance = whole_provenance(facts, session.config, messages)
        complete = exitstatus in (0, 1, 5) and not messages.problems
        conclusion.record = record_of(session.tally, session.selection, provenance, complete=complete)
        write_files(freeze(session), options, messages, conclusion, with_record=has_run)
    if accepts and options.baseline is not None:
        accept(options.baseline, session.tally.accepted(), messages, conclusion)
    return 1 if messages.problems and exitstatus in (0, 5) else exitstatus


def conclude_hang(session: AmpSession, item: pytest.Item | None, message: str) -> Run:
    """Judge a run that does not end, of which ``item`` is the running test, and return its result."""
    session.messages.problem(message)
    target = None if item is None else target_of(item)
    if item is not None and target is not None:
        info = item.stash[INFO]
        session.tally.add_hang(item.nodeid, info, key_of(item, info, target), message)
    finish(session, 1)
    return freeze(session)


def _judge(session: AmpSession, exitstatus: int) -> None:
    """Collect the problems of a run that ended with ``exitstatus``."""
    tally, pytest_options, options = session.tally, session.config.option, session.options
    selection, messages = session.selection, session.messages
    messages.problem(*machine_faults.problems(session.isolation, tally))
    if exitstatus == 0 and options.explicit and not (session.collected.ended or session.finished_nodes):
        messages.problem("the run was ended with status 0 before its tests were collected (pytest.exit, say)")
    # An interrupted run (2) and an internal error (3) fail anyway; the tests that they did not reach are not listed.
    messages.problem(*tally.unexecuted(selection.selected if exitstatus in (0, 1, 5) else {}), *tally.clashes())
    if exitstatus == 0:
        # With failed tests (1) the run fails anyway, and it may have stopped at the first one (-x).
        messages.problem(*tally.unreported(selection.selected))
    messages.problem(*tally.fixed(options.known))
    if not (pytest_options.keyword or pytest_options.markexpr or getattr(pytest_options, "lf", False)):
        # These options select tests by name, marker or last outcome: a skipped module may have none of the selected.
        messages.problem(*tally.unseen(selection.skipped_modules))
    if session.baseline is not None:
        baseline = session.baseline.record.observations
        session.conclusion.gone = tally.gone(baseline, selection.created)
        messages.problem(*tally.uncompared(baseline))
        if not options.accept:
            messages.problem(*tally.swallowed())
    if options.strict:
        messages.problem(*(f"gone from the baseline: {o.key}" for o in session.conclusion.gone))
        messages.problem(*tally.inconclusive())
        unclear = [o.key for o in tally.observed() if o.verdict is Verdict.INCONCLUSIVE]
        messages.problem(*(f"inconclusive: {key}" for key in unclear))
