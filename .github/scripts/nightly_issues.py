"""One issue for each way in which the nightly gate fails: opened the first night, updated on the next ones.

``python nightly_issues.py FOLDER`` reads the JUnit files below FOLDER (one for each channel). The signature of a
failure is its test without the parameters, and the first line of its message without numbers: 127 operators that fail
for one reason are one issue. It is called after a red night: that no file has a failure is one, too. ``gh`` finds an
open issue by a mark in its text; ``RUN_URL`` is linked. Ends with 0: that the gate is red is told by the gate itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

LABEL = "nightly"
#: More signatures than this in one night are one fault of the environment: they are put into one issue.
MOST = 10


@dataclass
class Failure:
    """One signature, and where it was seen."""

    test: str
    message: str
    seen: list[str] = field(default_factory=list)

    @property
    def mark(self) -> str:
        """What the issue is found by."""
        text = f"{self.test}\n{re.sub(r'[0-9.]+(e[-+]?[0-9]+)?', '#', self.message)}"
        return f"nightly-signature-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def failures(folder: Path) -> list[Failure]:
    """The failures of all channels, one for each signature, in the order of their names."""
    found: dict[str, Failure] = {}
    for path in sorted(folder.rglob("junit*.xml")):
        channel = path.relative_to(folder).parts[0]
        for case in ET.parse(path).iter("testcase"):  # noqa: S314  # pytest wrote it in this run
            for trouble in [*case.findall("failure"), *case.findall("error")]:
                name, _, parameters = case.get("name", "").partition("[")
                message = trouble.get("message", "").strip().splitlines() or ["no message"]
                failure = Failure(f"{case.get('classname')}::{name}", message[0])
                kept = found.setdefault(failure.mark, failure)
                kept.seen.append(f"{channel}: [{parameters}" if parameters else channel)
    ordered = sorted(found.values(), key=lambda each: (each.test, each.message))
    if not ordered:
        reports = len(list(folder.rglob("junit*.xml")))
        return [Failure("the nightly gate", "is red, and no test of it failed", [f"JUnit files: {reports}"])]
    if len(ordered) <= MOST:
        return ordered
    whole = Failure("the nightly gate", f"fails in {len(ordered)} ways")
    whole.seen = [f"{each.test}: {each.message}" for each in ordered]
    return [whole]


def body(failure: Failure, url: str) -> str:
    """The text of an issue, or of a comment on it. Fenced: a message is text of a test, not markup."""
    shown = failure.seen[:30] + ([f"and {len(failure.seen) - 30} more"] if len(failure.seen) > 30 else [])
    seen = "\n".join(["```", failure.message.replace("```", "'''"), "", *shown, "```"])
    return f"`{failure.test}` is red in {url}\n\n{seen}\n\n<!-- {failure.mark} -->\n"


def gh(*arguments: str, text: str | None = None) -> str:
    """Call gh with a text on its standard input. Raises CalledProcessError if it fails."""
    done = subprocess.run(["gh", *arguments], input=text, capture_output=True, text=True, check=True)  # noqa: S607
    return done.stdout


def main(arguments: list[str]) -> int:
    """Open or update."""
    found = failures(Path(arguments[0]))
    url = os.environ.get("RUN_URL", "a run without a page")
    listed = gh("issue", "list", "--label", LABEL, "--state", "open", "--limit", "200", "--json", "number,body")
    known = {issue["number"]: issue["body"] for issue in json.loads(listed)}
    for failure in found:
        number = next((number for number, text in known.items() if failure.mark in text), None)
        if number is None:
            title = f"nightly: {failure.test}: {failure.message}"[:120]
            gh("issue", "create", "--title", title, "--label", LABEL, "--body-file", "-", text=body(failure, url))
            sys.stdout.write(f"opened: {title}\n")
        else:
            gh("issue", "comment", str(number), "--body-file", "-", text=body(failure, url))
            sys.stdout.write(f"updated #{number}: {failure.test}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
