"""End of a run: problems beyond its tests, and the files that it writes."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pytest_amp
from pytest_amp.data_files.releases import installed_torch
from pytest_amp.hookspecs import raised_in
from pytest_amp.record import (
    Failure,
    Record,
    RecordError,
    Value,
    Verdict,
    alone,
    canonical,
    read_record,
    unwritable,
    write_record,
    write_whole,
)
from pytest_amp.report.markdown import append_to_job_summary, page

if TYPE_CHECKING:
    from pytest_amp.run.session import AmpSession


#: Maximum length of a failure's reason in a record: one line, the essential part first.
LONGEST = 300


#: Options of pytest that collect tests without running any.
RUNS_NOTHING = ("collectonly", "setuponly", "setupplan", "showfixtures", "show_fixtures_per_test", "cacheshow")
#: Provenance that comparisons depend on: the provenance hook may add entries, but not change these.
COMPARED = ("torch", "devices", "cpu_capability", "seed", "tolerance_scale")


def finish(session: AmpSession, exitstatus: int) -> int:
    """Return the exit status of the run: 4 for a usage error, 1 if a status of 0 would be wrong."""
    session.finishing = True
    if session.usage_errors:
        return int(pytest.ExitCode.USAGE_ERROR)
    option = session.config.option
    if any(getattr(option, name, False) for name in RUNS_NOTHING):
        return exitstatus
    if session.finished_nodes:
        from pytest_amp.run.controller import check_exits

        check_exits(session)
    tally = session.tally
    _expect_collected(session, exitstatus)
    # A run that was interrupted (2) or broke (3) is red already; tests that it did not reach are no problem.
    session.problems += tally.unexecuted(session.selected if exitstatus in (0, 1, 5) else {}) + tally.clashes()
    if exitstatus == 0:
        # A run that stopped at a failure (1) is red already.
        session.problems += tally.unreported(session.selected)
    session.problems += tally.fixed(session.asked.known)
    if not (option.keyword or option.markexpr or getattr(option, "lf", False)):
        # With one of these options, it is unknown whether a test of a skipped module was requested.
        session.problems += tally.unseen(session.skipped_modules)
    if session.baseline is not None:
        session.gone = tally.gone(session.baseline.observations, session.made)
        session.problems += tally.uncompared(session.baseline.observations)
        if not session.asked.accept:
            session.problems += tally.swallowed()
    if session.asked.strict:
        session.problems += [f"gone from the baseline: {observation.key}" for observation in session.gone]
        session.problems += tally.inconclusive()
        session.problems += [f"inconclusive: {o.key}" for o in session.observed() if o.verdict is Verdict.INCONCLUSIVE]
    _write(session, complete=exitstatus in (0, 1, 5))
    if session.asked.accept and exitstatus in (0, 1):
        _accept(session)
    return 1 if session.problems and exitstatus in (0, 5) else exitstatus


def _expect_collected(session: AmpSession, exitstatus: int) -> None:
    """Note a problem unless a green run has collected its tests, in this process or in its workers."""
    if exitstatus == 0 and session.asked.explicit and not (session.collection_ended or session.finished_nodes):
        session.problem("the run was ended as a green one before its tests were collected (pytest.exit, say)")


def _accept(session: AmpSession) -> None:
    """Replace values in the baseline's file by the observations of the passing tests.

    The file is read again under a lock: another run may have changed it since the comparison, and both changes count.
    """
    path = session.asked.baseline
    assert path is not None
    try:
        with alone(path):
            accepted, moved = _merged(session, read_record(path))
            write_record(accepted, path, replace=True)
    except RecordError as error:
        session.problems.append(f"not written: {error}")
        return
    session.accepted = moved
    session.written.append(str(path))


def _merged(session: AmpSession, baseline: Record) -> tuple[Record, int]:
    """Return the baseline with the observations of the passing tests, and the number of changed observations.

    If they cover all of the baseline, its provenance becomes this run's; otherwise the baseline keeps its own, with a
    list of the keys that come from this run. Nothing else in it changes.
    """
    run = record_of(session, complete=True)
    known = baseline.by_key()
    taken = {each.key: replace(each, baseline=None, verdict=Verdict.PASS) for each in session.tally.accepted()}
    gone = {observation.key for observation in session.gone} & known.keys()
    merged = {**{key: each for key, each in known.items() if key not in gone}, **taken}
    moved = [key for key in taken if key not in known or canonical(known[key].value) != canonical(taken[key].value)]
    provenance = dict(run.provenance)
    if merged.keys() - taken.keys():
        earlier = baseline.provenance.get("accepted")
        entry: Value = {
            "torch": provenance["torch"],
            "date": provenance["date"],
            "keys": [*sorted(moved), *sorted(gone)],
        }
        provenance = {**baseline.provenance, "accepted": [*(earlier if isinstance(earlier, list) else []), entry]}
    summary = run.summary if not merged.keys() - taken.keys() else baseline.summary
    ran = None if baseline.ran is None or run.ran is None else _together(baseline.ran, run.ran)
    failures = tuple(each for each in baseline.failures if not run.ran_whole(each))
    record = Record(tuple(merged.values()), provenance, summary, baseline.complete, ran, failures)
    return record, len(moved) + len(gone)


def _together(*places: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return the tests of all of ``places``, without duplicates and in order."""
    names = sorted({name for each in places for name in each})
    return {name: tuple(sorted({test for each in places for test in each.get(name, ())})) for name in names}


def record_of(session: AmpSession, *, complete: bool) -> Record:
    """Return this run as a record."""
    provenance = _with_the_projects({**_provenance(session), **session.provenance}, session)
    summary: dict[str, Value] = {
        f"{target} {family}": dict(sorted(counts.items()))
        for (target, family), counts in sorted(session.tally.outcomes.items())
    }
    tally = session.tally
    ran: dict[str, list[str]] = {}
    for target, family, test in sorted(tally.whole(session.made)):
        ran.setdefault(f"{target} {family}", []).append(test)
    return Record(
        tuple(session.observed()),
        provenance,
        summary,
        complete and not session.problems,
        {place: tuple(tests) for place, tests in ran.items()},
        tuple(Failure(key, why[:LONGEST]) for key, why in tally.failed.items()),
    )


def _with_the_projects(own: dict[str, Value], session: AmpSession) -> dict[str, Value]:
    """Return ``own`` with the additions of the hook pytest_amp_provenance.

    An error of the hook, or a value that no file can store, makes the run red; the remaining record is kept.
    """
    hook, given = "pytest_amp_provenance", dict(own)
    try:
        session.config.hook.pytest_amp_provenance(provenance=given)
    except Exception as error:  # noqa: BLE001  # a project's own code may raise anything
        session.problem(raised_in(hook, error))
    for name, value in given.items():
        if name in COMPARED and value != own.get(name):
            session.problem(f"the hook {hook} changes {name}, on which comparisons rest; valid: another name")
        elif problem := unwritable(name, value):
            session.problem(f"the hook {hook}: {problem}")
        else:
            own[name] = value
    return own


def _provenance(session: AmpSession) -> dict[str, Value]:
    asked = session.asked
    return {
        "plugin": pytest_amp.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "pytest": pytest.__version__,
        "torch": installed_torch(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["pytest", *map(str, session.config.invocation_params.args)]),
        "seed": asked.seed,
        "tolerance_scale": asked.tolerance_scale,
        "baseline": str(asked.baseline) if asked.baseline else None,
    }


def _write(session: AmpSession, *, complete: bool) -> None:
    asked = session.asked
    files: list[tuple[Path, Callable[[Record], None]]] = [
        (report.path, partial(_REPORTS[report.format], session, report.path)) for report in asked.report
    ]
    if asked.record is not None:
        files.append((asked.record, partial(write_record, path=asked.record, replace=False)))
    if not files:
        return
    record = record_of(session, complete=complete)
    for path, write in files:
        problem = _try(write, record)
        if problem is None:
            session.written.append(str(path))
        else:
            session.problems.append(f"not written: {problem}")


def _try(write: Callable[[Record], None], record: Record) -> str | None:
    try:
        write(record)
    except RecordError as error:
        return str(error)
    return None


def _as_json(_session: AmpSession, path: Path, record: Record) -> None:
    write_record(record, path, replace=True)


def _as_page(session: AmpSession, path: Path, record: Record) -> None:
    write_whole(page(session, record), path, replace=True)


def _as_job_summary(session: AmpSession, path: Path, record: Record) -> None:
    try:
        append_to_job_summary(page(session, record), path)
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}") from None


def _as_html(session: AmpSession, path: Path, record: Record) -> None:
    from pytest_amp.report.html import of_run

    write_whole(of_run(session, record), path, replace=True)


_REPORTS: dict[str, Callable[[AmpSession, Path, Record], None]] = {
    "json": _as_json,
    "md": _as_page,
    "html": _as_html,
    "github": _as_job_summary,
}
