"""Colours of a failure in a terminal: what is wrong, the severity of each finding, and what to do."""

from __future__ import annotations

import re
from typing import Any

import pytest

#: A label at the beginning of a line of a failure, and what follows it.
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
    """Let a failure of a check write itself in colour, in a terminal that has any; its text stays as it is."""
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
