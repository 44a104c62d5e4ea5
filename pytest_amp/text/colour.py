"""Colours of a failure in a terminal: the error, the severity of each finding, and the remedy."""

from __future__ import annotations

import re
from typing import Any

import pytest

#: Label at the beginning of a line of a failure, and the rest of the line.
_LABEL = re.compile(r"(?P<label> +(?P<word>\w+) +)(?P<rest>\S.*)")
_COLOURS: dict[str, dict[str, bool]] = {
    "error": {"red": True, "bold": True},
    "warning": {"yellow": True, "bold": True},
    "harm": {"red": True},
    "line": {"cyan": True},
    "likely": {"yellow": True},
    "mend": {"green": True},
    "page": {"cyan": True},
    "rerun": {"cyan": True},
    "accept": {"cyan": True},
}


def colour_failure(report: pytest.TestReport) -> None:
    """Write a check's failure in colour, in a terminal that supports it; its text stays unchanged."""
    text = str(report.longrepr) if report.failed and hasattr(report.longrepr, "toterminal") else ""
    if not text.startswith("AmpFailure: "):
        return

    def write(out: Any) -> None:
        first, *rest = text.splitlines()
        out.line(first, red=True, bold=True)
        for line in rest:
            parts = _LABEL.fullmatch(line)
            if parts is None or parts["word"] not in _COLOURS:
                out.line(line)
            else:
                out.write(parts["label"], **_COLOURS[parts["word"]])
                out.line(parts["rest"])

    longrepr: Any = report.longrepr
    longrepr.toterminal = write
