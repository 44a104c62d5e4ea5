"""Known faults that a release fixes: the rows of ``suites/amp_faults.toml`` that its record requires."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from pytest_amp.data_files import toml
from pytest_amp.record import FIXED, Failure
from tools.release_support.spec_rows import written

FILE = "suites/amp_faults.toml"
HEAD = """\
# Faults of torch that a release mends, or brings: of tests in the packages beside this file.
# key: the key of tests, in which * stands for anything. until: the last release with a fault that the test declares.
# since: the first release in which a test is expected to fail that declares nothing.
"""
_REPORT = re.compile(r"^(?P<report>[\w.-]+/[\w.-]+#[0-9]+(?:, #[0-9]+)*|no report found): (?P<reason>.*)$")
_DTYPES = {"bf16", "fp16"}


def rows(failures: Iterable[Failure], last: str) -> list[dict[str, str]]:
    """Return a row for each expected failure that passes: its fault existed until ``last``.

    A key covers no device and no dtype on which the test did not pass: on CUDA the expected failure stays.
    """
    dtypes: dict[tuple[str, str, str, str, str], set[str]] = {}
    for failure in failures:
        if failure.is_fixed:
            family, device, dtype, name = failure.key.split("/", 3)
            dtypes.setdefault((family, device, name, *split(failure.why)), set()).add(dtype)
    found = []
    for (family, device, name, report, reason), seen in sorted(dtypes.items()):
        for dtype in ["*"] if seen >= _DTYPES else sorted(seen):
            key = f"{family}/{device}/{dtype}/{name}"
            found.append({"key": key, "reason": reason, "report": report, "until": last})
    return found


def split(why: str) -> tuple[str, str]:
    """Return the report and the reason of an expected failure that passes."""
    said = why.removeprefix(FIXED).partition(" passes on ")[0]
    found = _REPORT.match(said)
    if found is not None:
        return found["report"], found["reason"]
    return "no report found", said


def with_rows(root: Path, added: Iterable[dict[str, str]]) -> str | None:
    """Return the text of the file with more rows; None if it has all of them."""
    path = root / FILE
    text = path.read_text(encoding="utf-8") if path.is_file() else HEAD
    known = {row["key"] for row in toml.loads(text).get("fault", ())}
    new = [row for row in added if row["key"] not in known]
    if not new:
        return None
    blocks = ["\n".join(["", "[[fault]]", *(f"{name} = {written(row[name])}" for name in row)]) for row in new]
    return text + "".join(f"{block}\n" for block in blocks)
