"""Refusals of options and ini keys together; imported only if there may be something to refuse."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_amp.config import AmpConfig

#: Variable of GitHub Actions with the path of the running job's page.
JOB_SUMMARY = "GITHUB_STEP_SUMMARY"


def refuse_unknown(names: Iterable[str], known: Sequence[str], config: pytest.Config) -> None:
    """Raise pytest.UsageError for an unknown ini key that is meant for this plugin: pytest warns of it at most.

    Such a key begins like this plugin's keys, or spells one of them differently: ``amp-device``, ``AMP_DEVICE``.
    """
    for name in names:
        meant = _meant(name, known)
        if meant is not None and not _is_a_key(name, config):
            where = "-o on the command line" if config.inipath is None else config.inipath.name
            valid = meant or ", ".join(known)
            raise pytest.UsageError(f"{name} ({where}): no such key; expected {valid}")


def _meant(name: str, known: Sequence[str]) -> str | None:
    """Return the key that ``name`` misspells; "" if it only has this plugin's prefix, None if it is unrelated."""
    spelt = re.sub(r"[\W_]+", "_", name.lower()).strip("_")
    joined = {key.replace("_", ""): key for key in known}
    return joined.get(spelt.replace("_", ""), "" if spelt.startswith("amp_") else None)


def _is_a_key(name: str, config: pytest.Config) -> bool:
    """Return whether a plugin or a conftest.py has such a key."""
    try:
        config.getini(name)
    except ValueError as error:
        return "unknown configuration value" not in str(error)
    return True


def job_summary(part: str, reports: str) -> Path:
    """Return the page of the running job of GitHub Actions, to which steps append.

    Raises ValueError without one; ``reports`` are the valid values.
    """
    if part != "github":
        raise ValueError(f"{part!r}: github takes no file; expected {reports}")
    path = Path(os.environ.get(JOB_SUMMARY, ""))
    if not path.is_file():
        raise ValueError(
            f"github is the page of a job of GitHub Actions, and {JOB_SUMMARY} names no file; expected {reports}"
        )
    return path


def refuse_one_file_twice(options: AmpConfig) -> None:
    """Refuse a report to the file of the baseline, the record or another report; any other file may be replaced."""
    files = {"amp_baseline": options.baseline, "amp_record": options.record}
    owners = {path.resolve(): ini for ini, path in files.items() if path is not None}
    for report in options.report:
        other = owners.get(report.path.resolve())
        if other is not None:
            where, also = options.where("amp_report"), options.where(other)
            raise pytest.UsageError(
                f"{where}: {str(report.path)!r} is the file of {also}, too; expected a file of its own"
            )
        owners[report.path.resolve()] = "amp_report"
