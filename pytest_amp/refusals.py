"""What is refused of options and ini keys together; imported only where there may be something to refuse."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_amp.config import JOB_SUMMARY, REPORTS

if TYPE_CHECKING:
    from pytest_amp.config import AmpConfig


def refuse_unknown(names: Iterable[str], known: Sequence[str], config: pytest.Config) -> None:
    """Raises pytest.UsageError for a key of no plugin that is meant as one of ours: pytest warns of it at most.

    Meant is one that begins as ours do, and one of ours in another spelling: ``amp-device``, ``AMP_DEVICE``.
    """
    for name in names:
        meant = _meant(name, known)
        if meant is not None and not _is_a_key(name, config):
            where = "-o on the command line" if config.inipath is None else config.inipath.name
            valid = meant or ", ".join(known)
            raise pytest.UsageError(f"{name} ({where}): no such key; valid: {valid}")


def _meant(name: str, known: Sequence[str]) -> str | None:
    """The key that ``name`` spells in another way; "" where it only begins as ours do, None where it is not ours."""
    spelt = re.sub(r"[\W_]+", "_", name.lower()).strip("_")
    joined = {key.replace("_", ""): key for key in known}
    return joined.get(spelt.replace("_", ""), "" if spelt.startswith("amp_") else None)


def _is_a_key(name: str, config: pytest.Config) -> bool:
    """Whether a plugin or a conftest.py has such a key."""
    try:
        config.getini(name)
    except ValueError as error:
        return "unknown configuration value" not in str(error)
    return True


def job_summary(part: str) -> Path:
    """The page of the running job of GitHub Actions, to which steps append. Raises ValueError without one."""
    if part != "github":
        raise ValueError(f"{part!r}: github takes no file; valid: {REPORTS}")
    path = Path(os.environ.get(JOB_SUMMARY, ""))
    if not path.is_file():
        raise ValueError(
            f"github is the page of a job of GitHub Actions, and {JOB_SUMMARY} names no file; valid: {REPORTS}"
        )
    return path


def refuse_one_file_twice(asked: AmpConfig) -> None:
    """A report may replace its file, but not the baseline, the record or another report of the same run."""
    files = {"amp_baseline": asked.baseline, "amp_record": asked.record}
    taken = {path.resolve(): ini for ini, path in files.items() if path is not None}
    for report in asked.report:
        other = taken.get(report.path.resolve())
        if other is not None:
            where, also = asked.where("amp_report"), asked.where(other)
            raise pytest.UsageError(
                f"{where}: {str(report.path)!r} is the file of {also}, too; valid: a file of its own"
            )
        taken[report.path.resolve()] = "amp_report"
