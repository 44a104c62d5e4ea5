"""Files that a run writes: its record, its reports, and the baseline that it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pytest_amp.config import AmpConfig
from pytest_amp.record import (
    Observation,
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
from pytest_amp.run.result import Run
from pytest_amp.run.session import Conclusion, Messages


def write_files(run: Run, options: AmpConfig, messages: Messages, conclusion: Conclusion, *, with_record: bool) -> None:
    """Write the requested files of ``run``, and note them in ``conclusion``.

    A failure to write one is a problem of the run, which the files after it report.

    A run without tests needs no record: since a record is never overwritten, it would block the corrected command.
    """
    files: list[tuple[Path, Callable[[Run], None]]] = [
        (report.path, partial(_REPORTS[report.format], report.path)) for report in options.report
    ]
    if options.record is not None and with_record:
        files.append((options.record, partial(_as_record, options.record, replace_existing=False)))
    for path, write in files:
        problem = _problem(write, replace(run, problems=tuple(messages.problems), written=tuple(conclusion.written)))
        if problem is None:
            conclusion.written.append(str(path))
        else:
            messages.problem(f"not written: {problem}")


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


def accept(path: Path, observed: Sequence[Observation], messages: Messages, conclusion: Conclusion) -> None:
    """Replace values in the baseline's file with ``observed``, the observations of the passing tests.

    The file is read again under a lock: another run may have changed it since the comparison, and its changes must not
    be lost.
    """
    run = conclusion.record
    assert run is not None
    try:
        with alone(path):
            record, count = _merged(run, observed, conclusion.gone, read_record(path))
            write_record(record, path, replace=True)
    except RecordError as error:
        messages.problem(f"not written: {error}")
        return
    conclusion.accepted = count
    conclusion.written.append(str(path))


def _merged(
    run: Record, observed: Sequence[Observation], lost: Sequence[Observation], baseline: Record
) -> tuple[Record, int]:
    """Return the baseline with the observations of the passing tests, and the number of changed observations.

    If they cover the whole baseline, its provenance is replaced with this run's. Otherwise it is retained, with an
    entry (``accepted``) that lists the keys from this run. Observations that are gone are removed, and so are failures
    of tests that ran completely in this run; the tests of both runs are listed as executed.
    """
    known = baseline.by_key()
    accepted = {observation.key: replace(observation, baseline=None, verdict=Verdict.PASS) for observation in observed}
    gone = {observation.key for observation in lost} & known.keys()
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
