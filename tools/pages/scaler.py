"""Tables of docs/reference/scaler.md: the transition table, and a table of optimizers for each record.

``python -m tools.pages.scaler docs/reference/scaler.md [RECORD ...]`` writes them. Create a record on each device with
``pytest suites/scaler/test_optimizers.py --amp-record=RECORD``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_amp.known.expected import faults_of_the_suites
from pytest_amp.known.rows import Known, read_known
from pytest_amp.record import Record, read_record, write_whole
from pytest_amp.scaler.optimizers import IMPLEMENTATIONS, VARIANTS
from pytest_amp.scaler.transitions import CALLS, STATES, TABLE
from tools.pages.part import replaced

#: Tests that the run of a record must have completed for every optimizer; otherwise no table is written.
HELD = (
    "test_clean_steps_are_the_unscaled_ones",
    "test_parameters_and_state_are_float32",
    "test_implementations_agree",
    "test_a_skipped_step_changes_nothing",
)
#: Key of the test that some optimizers fail because of a known fault, which is the same on every device.
_FIRST_STEP = "scaler/cpu/bf16/test_optimizers::test_a_skipped_first_step_makes_no_state[{}]"


def transitions() -> str:
    """Return the transition table in Markdown."""
    head = ["call", *(state.value for state in STATES)]
    rows = [[f"`{call}`", *(_cell(str(TABLE[call][state])) for state in STATES)] for call in CALLS]
    return "\n".join(_table(head, rows))


def _cell(outcome: str) -> str:
    """Format an outcome: a state as it is, an exception as its type and quoted message."""
    error, _, words = outcome.partition(": ")
    return f"{error}: “{words}”" if words else outcome


def optimizers(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the name of a device and its table in Markdown, for each device and dtype of the record.

    Raises ValueError if a test of ``HELD`` did not run, or did not pass, for each of its parameters.
    """
    for observation in record.observations:
        family, device, dtype, name = observation.key.split("/", 3)
        if (family, name) == ("scaler", "optimizers") and isinstance(observation.value, list):
            ran = (record.ran or {}).get(f"{device}-{dtype} scaler", ())
            missing = [test for test in HELD if f"test_optimizers::{test}" not in ran]
            if missing:
                raise ValueError(f"on {device} in {dtype} the record has not all of {', '.join(missing)}")
            yield device, "\n".join(_optimizers(device, [str(name) for name in observation.value], record))


def _optimizers(device: str, checked: list[str], record: Record) -> Iterator[str]:
    provenance = record.provenance
    devices = provenance.get("devices")
    about = devices.get(device) if isinstance(devices, dict) else None
    card = [str(about["gpu"])] if isinstance(about, dict) and "gpu" in about else []
    head = [f"torch {provenance.get('torch')}", *card, str(provenance.get("date"))[:10]]
    yield f"{', '.join(head)}:"
    yield ""
    rows = []
    for name in VARIANTS:
        only = name in checked
        cells = [_checked(f"{name}, {kind}", checked) for kind in IMPLEMENTATIONS]
        if not only and not any(text.partition(", ")[0] == name for text in checked):
            cells = ["not available"] * len(cells)
        rows.append([name, *(["checked (one implementation)"] + [""] * (len(cells) - 1) if only else cells)])
    yield from _table(["optimizer", *IMPLEMENTATIONS], rows)


def _checked(optimizer: str, checked: list[str]) -> str:
    if optimizer not in checked:
        return "not available"
    fault = next((row for row in _faults() if row.matches(_FIRST_STEP.format(optimizer))), None)
    return "checked" if fault is None else f"checked; skipped first step: upstream xfail, {fault.report}"


@functools.cache
def _faults() -> tuple[Known, ...]:
    return read_known(faults_of_the_suites())


def _table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def main(arguments: list[str]) -> None:
    """Rewrite the page's tables."""
    path = Path(arguments[0])
    page = replaced(path.read_text(encoding="utf-8"), "transitions", transitions())
    for name in arguments[1:]:
        for device, table in optimizers(read_record(Path(name))):
            page = replaced(page, f"optimizers on {device}", table)
    write_whole(page, path, replace=True)


if __name__ == "__main__":
    main(sys.argv[1:])
