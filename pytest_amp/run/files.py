"""Files that a run writes: its record, its reports, and the baseline that it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pytest_amp.record import (
    Record,
    RecordError,
    Value,
    Verdict,
    alone,
    canonical,
    read_record,
    write_record,
    write_whole,
)
from pytest_amp.report.markdown import append_to_job_summary, page
from pytest_amp.run.freeze import freeze
from pytest_amp.run.result import Run
from pytest_amp.run.session import AmpSession


def write_files(session: AmpSession, *, with_record: bool) -> None:
    """Write the requested files. A failure to write one is a problem of the run, which the files after it report.

    A run without tests needs no record: since a record is never overwritten, it would block the corrected command.
    """
    options = session.options
    files: list[tuple[Path, Callable[[Run], None]]] = [
        (report.path, partial(_REPORTS[report.format], report.path)) for report in options.report
    ]
    if options.record is not None and with_record:
        files.append((options.record, partial(_as_record, options.record, replace_existing=False)))
    if not files:
        return
    run = freeze(session)
    for path, write in files:
        problem = _problem(write, replace(run, problems=tuple(session.problems), written=tuple(session.written)))
        if problem is None:
            session.written.append(str(path))
        else:
            session.problems.append(f"not written: {problem}")


def _problem(write: Callable[[Run], None], run: Run) -> str | None:
    try:
        write(run)
    except RecordError as error:
        return str(error)
    return None


def _as_record(path: Path, run: Run, *, replace_existing: bool) -> None:
    write_record(run.record, path, replace=replace_existing)


def _as_page(path: Path, run: Run) -> None:
    write_whole(page(run), path, replace=True)


def _as_job_summary(path: Path, run: Run) -> None:
    try:
        append_to_job_summary(page(run), path)
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}") from None


def _as_html(path: Path, run: Run) -> None:
    from pytest_amp.report.html import of_run

    write_whole(of_run(run), path, replace=True)


_REPORTS: dict[str, Callable[[Path, Run], None]] = {
    "json": partial(_as_record, replace_existing=True),
    "md": _as_page,
    "html": _as_html,
    "github": _as_job_summary,
}


def accept(session: AmpSession) -> None:
    """Replace values in the baseline's file with the observations of the passing tests.

    The file is read again under a lock: another run may have changed it since the comparison, and its changes must not
    be lost.
    """
    path = session.options.baseline
    assert path is not None
    try:
        with alone(path):
            record, count = _merged(session, read_record(path))
            write_record(record, path, replace=True)
    except RecordError as error:
        session.problems.append(f"not written: {error}")
        return
    session.accepted = count
    session.written.append(str(path))


def _merged(session: AmpSession, baseline: Record) -> tuple[Record, int]:
    """Return the baseline with the observations of the passing tests, and the number of changed observations.

    If they cover the whole baseline, its provenance is replaced with this run's. Otherwise it is retained, with an
    entry (``accepted``) that lists the keys from this run. Observations that are gone are removed, and so are failures
    of tests that ran completely in this run; the tests of both runs are listed as executed.
    """
    run, known = session.record, baseline.by_key()
    assert run is not None
    accepted = {
        observation.key: replace(observation, baseline=None, verdict=Verdict.PASS)
        for observation in session.tally.accepted()
    }
    gone = {observation.key for observation in session.gone} & known.keys()
    merged = {**{key: observation for key, observation in known.items() if key not in gone}, **accepted}
    changed = [
        key
        for key, observation in accepted.items()
        if key not in known or canonical(known[key].value) != canonical(observation.value)
    ]
    is_whole = not merged.keys() - accepted.keys()
    provenance = dict(run.provenance)
    if not is_whole:
        earlier = baseline.provenance.get("accepted")
        entry: Value = {
            "torch": provenance["torch"],
            "date": provenance["date"],
            "keys": [*sorted(changed), *sorted(gone)],
        }
        provenance = {**baseline.provenance, "accepted": [*(earlier if isinstance(earlier, list) else []), entry]}
    summary = run.summary if is_whole else baseline.summary
    ran = None if baseline.ran is None or run.ran is None else _together(baseline.ran, run.ran)
    failures = tuple(failure for failure in baseline.failures if not run.ran_whole(failure))
    record = Record(tuple(merged.values()), provenance, summary, baseline.complete, ran, failures)
    return record, len(changed) + len(gone)


def _together(*places: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return the tests of all of ``places``, without duplicates and in order."""
    names = sorted({name for tests in places for name in tests})
    return {name: tuple(sorted({test for tests in places for test in tests.get(name, ())})) for name in names}
