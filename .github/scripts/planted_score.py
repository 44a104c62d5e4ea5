"""Number of noticed planted defects, from the JUnit file of tests/test_planted_defects.py.

``python planted_score.py planted.xml`` prints ``planted defects: 212 of 213 killed`` and the names of the others, adds
that to the page of the running job, and ends with 1 unless each was killed and there was one.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET


def survivors(junit: Path) -> tuple[int, list[str]]:
    """The number of defects that were planted, and the names of those that nothing noticed."""
    planted, alive = 0, []
    for case in ET.parse(junit).iter("testcase"):  # noqa: S314  # pytest wrote the file a moment ago
        named = re.fullmatch(r"test_planted_defect_is_detected\[(.+)\]", case.get("name", ""))
        if named is not None:
            planted += 1
            if len(case.findall("failure")) + len(case.findall("error")) + len(case.findall("skipped")):
                alive.append(named[1])
    return planted, alive


def main(arguments: list[str]) -> int:
    """Print the score; 0 if it is full."""
    planted, alive = survivors(Path(arguments[0]))
    line = f"planted defects: {planted - len(alive)} of {planted} killed"
    text = "".join(f"{row}\n" for row in [line, *(f"survived: {name}" for name in alive)])
    sys.stdout.write(text)
    if page := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(f"### {line}\n\n" + "".join(f"- survived: `{name}`\n" for name in alive) + "\n")
    return 0 if planted and not alive else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
