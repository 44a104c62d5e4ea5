"""Known faults that a release of torch fixes: new rows of ``suites/known.toml``, from a record of that release."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from pytest_amp.data_files import toml
from pytest_amp.data_files.releases import release_of
from pytest_amp.known.rows import Known
from pytest_amp.record import FIXED, Failure
from tools.release_support.spec_rows import written

FILE = "suites/known.toml"
_REPORT = re.compile(r"^(?P<report>[\w.-]+/[\w.-]+#[0-9]+(?:, #[0-9]+)*|no report found): (?P<reason>.*)$")
_DTYPES = {"bf16", "fp16"}
#: A row of the file, by column.
Row: TypeAlias = "dict[str, str | list[str]]"


def rows(failures: Iterable[Failure], last: str, known: Sequence[Known]) -> list[Row]:
    """Return a row for each expected failure that passes. The row ends the fault: ``until`` is the release ``last``.

    A row covers only the devices and dtypes on which the test passed: a pass on the CPU does not end the expected
    failure on CUDA. The other columns are copied from the row in ``known`` that marked the test as an expected failure.
    """
    dtypes: dict[_Fixed, set[str]] = {}
    for failure in failures:
        if failure.is_fixed:
            family, device, dtype, name = failure.key.split("/", 3)
            covering = [row for row in known if row.matches(failure.key) and row.is_in(release_of(last))]
            fault = split(failure.why) if not covering else (covering[-1].report, covering[-1].reason)
            fixed = _Fixed(f"{family}/*/{name}", device, *fault, covering[-1] if covering else None)
            dtypes.setdefault(fixed, set()).add(dtype)
    result = [_ended(fixed, passed, last) for fixed, passed in dtypes.items()]
    return sorted(result, key=lambda row: (row["key"], row["devices"]))


@dataclass(frozen=True)
class _Fixed:
    """Expected failure that passes on a device, and the row of ``known`` that covers it."""

    key: str
    device: str
    report: str
    reason: str
    row: Known | None


def _ended(fixed: _Fixed, dtypes: set[str], last: str) -> Row:
    """Return the row that ends a fault on the device, in ``dtypes``."""
    result: Row = {"key": fixed.key, "reason": fixed.reason, "report": fixed.report, "devices": [fixed.device]}
    if not dtypes >= _DTYPES:
        result["dtypes"] = sorted(dtypes)
    if fixed.row is not None:
        result |= {"since": fixed.row.since} if fixed.row.since else {}
        result |= {"machine": fixed.row.machine} if fixed.row.machine else {}
        result |= {"raises": list(fixed.row.raises)} if fixed.row.raises else {}
    return {**result, "until": last}


def split(why: str) -> tuple[str, str]:
    """Return the report and the reason of an expected failure that passes."""
    text = why.removeprefix(FIXED).partition(" passes on ")[0]
    match = _REPORT.match(text)
    if match is not None:
        return match["report"], match["reason"]
    return "no report found", text


def with_rows(root: Path, added: Iterable[Row]) -> str | None:
    """Return the text of the file with ``added`` rows appended; None if it has all of them.

    New rows are appended because the last row that covers a test decides.
    """
    text = (root / FILE).read_text(encoding="utf-8")
    present = toml.loads(text)["known"]
    new = [row for row in added if row not in present]
    if not new:
        return None
    blocks = ["\n".join(["", "[[known]]", *(f"{name} = {written(row[name])}" for name in row)]) for row in new]
    return text + "".join(f"{block}\n" for block in blocks)
