"""Findings of ``amp.check`` in the text of a failure, each with the address of the page that explains its kind."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata

#: Folder of the pages in a checkout.
_FOLDER = "docs/findings"
#: First line of a finding: severity, kind, place, and for those without further lines the message.
_HEAD = re.compile(
    r"^  (?P<severity>error|warning) {2,5}(?P<kind>[a-z]+(?:-[a-z]+)+)(?P<place>.*?)(?:: (?P<message>.*))?$"
)
#: Line of a message below its head, which has no label.
_MESSAGE = re.compile(r"^ {14}(?P<message>\S.*)$")


@dataclass(frozen=True)
class FindingText:
    """Finding as a failure's text has it: its severity, kind, place and message."""

    severity: str
    kind: str
    place: str
    message: str

    @property
    def page(self) -> str:
        """Address of the page of its kind."""
        return page_of(self.kind)


def findings_in(text: str) -> tuple[FindingText, ...]:
    """Return the findings in the text of a failure, worst first as they are there; none for another check's failure."""
    lines = text.splitlines()
    findings = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        head = _HEAD.match(line)
        if head is None:
            continue
        below = _MESSAGE.match(following)
        message = head["message"] or ("" if below is None else below["message"])
        findings.append(FindingText(head["severity"], head["kind"], head["place"].strip(), message))
    return tuple(findings)


def page_of(kind: str) -> str:
    """Return the address of a kind's page: on the site of the documentation if the package names one."""
    site = _site()
    return f"{_FOLDER}/{kind}.md" if site is None else f"{site}/findings/{kind}.html"


@functools.cache
def _site() -> str | None:
    """Return the address of the documentation among the package's addresses, None without one."""
    try:
        addresses = metadata("pytest-amp").get_all("Project-URL") or []
    except PackageNotFoundError:
        return None
    pairs = (address.partition(",") for address in addresses)
    return next((address.strip().rstrip("/") for label, _, address in pairs if label.lower() == "documentation"), None)
