"""What is refused of options and ini keys together; imported only where there may be something to refuse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_amp.config import AmpConfig


def refuse_unknown(names: Iterable[str], known: Sequence[str], config: pytest.Config) -> None:
    """Raises pytest.UsageError for a key of no plugin that begins as ours do: pytest warns of it, and runs without."""
    for name in names:
        if not _is_a_key(name, config):
            where = "-o on the command line" if config.inipath is None else config.inipath.name
            raise pytest.UsageError(f"{name} ({where}): no such key; valid: {', '.join(known)}")


def _is_a_key(name: str, config: pytest.Config) -> bool:
    """Whether a plugin or a conftest.py has such a key."""
    try:
        config.getini(name)
    except ValueError as error:
        return "unknown configuration value" not in str(error)
    return True


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
