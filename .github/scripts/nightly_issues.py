"""One issue for each cause for which the nightly gate is red: opened, updated while it lasts, closed when it is gone.

``python nightly_issues.py FOLDER`` reads the JUnit files below FOLDER, one folder for each leg (``gate-stable``). A
cause is a family of checks and the first line of a failure without device, dtype and numbers: 127 operators that fail
for one reason on four devices are one issue. A failure outside of the families is told by its test. ``gh`` finds an
open issue by a mark in its text. It is closed once each leg that has shown its cause ran to its end without it.

``RED`` says that a leg was red: that no file has a failure is an issue then. ``RUN_URL`` is linked. Ends with 0: that
the gate is red is told by the gate itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

LABEL = "nightly"
#: More causes than this in one night are one fault of the environment: they are put into one issue.
MOST = 10
#: What differs between the failures of one cause: where, in which dtype, and by how much.
_PLACE = re.compile(
    r"\bautocast\(\w+, \w+\)|\b(?:fake[-:])?(?:cpu|cuda|xpu|mps|mtia)(?:-(?:bf16|fp16|fp32|tf32))?\b|\bb?float16\b"
    r"|\b(?:bf16|fp16)\b"
)
_NUMBER = re.compile(r"[0-9.]+(e[-+]?[0-9]+)?")
_LEGS = re.compile(r"<!-- nightly-legs: (?P<legs>[^>]*) -->")


@dataclass
class Failure:
    """One cause: the ``subject`` is a family or a test, ``tests`` are by leg."""

    subject: str
    message: str
    tests: list[str] = field(default_factory=list)
    legs: list[str] = field(default_factory=list)

    @property
    def mark(self) -> str:
        """Return the text by which the issue is found."""
        text = f"{self.subject}\n{_NUMBER.sub('#', _PLACE.sub('', self.message))}"
        return f"nightly-cause-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def failures(folder: Path, *, red: bool = True) -> list[Failure]:
    """Return the failures of all legs, one for each cause, in the order of their names."""
    actual: dict[str, Failure] = {}
    for path in sorted(folder.rglob("junit*.xml")):
        leg = path.relative_to(folder).parts[0]
        for case in ET.parse(path).iter("testcase"):  # noqa: S314  # pytest wrote it in this run
            for trouble in [*case.findall("failure"), *case.findall("error")]:
                name, _, parameters = case.get("name", "").partition("[")
                test = f"{case.get('classname')}::{name}"
                message = trouble.get("message", "").strip().splitlines() or ["no message"]
                failure = Failure(_family(case) or test, message[0])
                retained = actual.setdefault(failure.mark, failure)
                retained.tests.append(f"{leg}: {test}" + (f"[{parameters}" if parameters else ""))
                retained.legs += [leg] * (leg not in retained.legs)
    ordered = sorted(actual.values(), key=lambda failure: (failure.subject, failure.message))
    if not ordered and red:
        reports = len(list(folder.rglob("junit*.xml")))
        return [Failure("the nightly gate", "is red, and no test of it failed", [f"JUnit files: {reports}"])]
    if len(ordered) <= MOST:
        return ordered
    whole = Failure("the nightly gate", f"fails in {len(ordered)} ways")
    whole.tests = [f"{failure.subject}: {failure.message}" for failure in ordered]
    whole.legs = sorted({leg for failure in ordered for leg in failure.legs})
    return [whole]


def _family(case: ET.Element) -> str:
    """Return the family of a test of the suites; a project's own tests have none."""
    properties = {element.get("name"): element.get("value", "") for element in case.iter("property")}
    family = properties.get("amp_family") or ""
    return "" if family == "project" else family


def whole_legs(folder: Path) -> set[str]:
    """Return the legs that ran to their end: with tests, and with a record that says so where there is one."""
    legs = set()
    for path in folder.rglob("junit*.xml"):
        if next(ET.parse(path).iter("testcase"), None) is not None:  # noqa: S314  # pytest wrote it in this run
            leg = path.relative_to(folder).parts[0]
            records = sorted((folder / leg).rglob("record.json"))
            if all(json.loads(record.read_text(encoding="utf-8")).get("complete") for record in records):
                legs.add(leg)
    return legs


def body(failure: Failure, url: str) -> str:
    """The text of an issue, or of a comment on it. Fenced: a message is text of a test, not markup."""
    shown = failure.tests[:30] + ([f"and {len(failure.tests) - 30} more"] if len(failure.tests) > 30 else [])
    observed = "\n".join(["```", failure.message.replace("```", "'''"), "", *shown, "```"])
    hidden = f"<!-- {failure.mark} -->\n<!-- nightly-legs: {' '.join(failure.legs)} -->\n"
    return f"`{failure.subject}` is red in {url}\n\n{observed}\n\n{hidden}"


def gh(*arguments: str, text: str | None = None) -> str:
    """Call gh with a text on its standard input. Raises CalledProcessError if it fails."""
    done = subprocess.run(["gh", *arguments], input=text, capture_output=True, text=True, check=True)  # noqa: S607
    return done.stdout


def open_or_update(failure: Failure, known: Mapping[int, str], url: str) -> int | None:
    """Open the issue of a cause, or say on the open one that it lasts; return the number of the latter."""
    number = next((number for number, text in known.items() if failure.mark in text), None)
    if number is None:
        title = f"nightly: {failure.subject}: {failure.message}"[:120]
        gh("issue", "create", "--title", title, "--label", LABEL, "--body-file", "-", text=body(failure, url))
        sys.stdout.write(f"opened: {title}\n")
        return None
    gh("issue", "comment", str(number), "--body-file", "-", text=body(failure, url))
    before = _legs(known[number])
    if not set(failure.legs) <= before:
        both = Failure(failure.subject, failure.message, failure.tests, sorted({*before, *failure.legs}))
        gh("issue", "edit", str(number), "--body-file", "-", text=body(both, url))
    sys.stdout.write(f"updated #{number}: {failure.subject}\n")
    return number


def _legs(text: str) -> set[str]:
    actual = _LEGS.search(text)
    return set(actual["legs"].split()) if actual else set()


def close_gone(known: Mapping[int, str], lasting: set[int], legs: set[str], url: str) -> None:
    """Close the issues of causes that are gone: each leg that has shown one ran to its end without it.

    One that names no leg is of the gate as a whole, and is gone in a night in which nothing lasts.
    """
    for number, text in known.items():
        shown = _legs(text)
        gone = shown <= legs if shown else bool(legs) and not lasting
        if number not in lasting and gone:
            ran = ", ".join(sorted(shown or legs))
            gh("issue", "close", str(number), "--comment", f"Gone in {url}: {ran} ran without it.")
            sys.stdout.write(f"closed #{number}\n")


def main(arguments: list[str]) -> int:
    """Open, update and close."""
    folder = Path(arguments[0])
    actual = failures(folder, red=os.environ.get("RED", "true") == "true")
    url = os.environ.get("RUN_URL", "a run without a page")
    listed = gh("issue", "list", "--label", LABEL, "--state", "open", "--limit", "200", "--json", "number,body")
    known = {issue["number"]: issue["body"] for issue in json.loads(listed)}
    numbers = {open_or_update(failure, known, url) for failure in actual}
    # A night that fails in more ways than are told one by one says of no cause that it is gone.
    if not any(failure.subject == "the nightly gate" for failure in actual):
        close_gone(known, {number for number in numbers if number is not None}, whole_legs(folder), url)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
