"""Entry of a report: one error or warning, with its line and its remedy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pytest_amp.failure import AmpFailure
from pytest_amp.lint import Finding, Severity
from pytest_amp.numerics.program import OtherProgram


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Finding of the linter, or failure of a check, as a report and a failure show it.

    ``kind`` names a page of docs/findings/; ``parts`` are the labelled lines below the message; ``harm`` is the ratio
    of the step's errors against float64 with and without the named code, None if that was not measured. ``check`` is
    the part of the linter that has the finding, ``""`` for entries of other checks.
    """

    kind: str
    severity: Severity
    module: str
    site: str
    message: str
    parts: tuple[tuple[str, str], ...] = ()
    harm: float | None = None
    #: Whether a check could not run at all, by an exception of the user's code or of torch.
    is_refusal: bool = False
    check: str = field(default="", compare=False)

    @property
    def is_error(self) -> bool:
        """Return whether the entry fails a test regardless of ``strict``."""
        return self.severity is Severity.ERROR

    @property
    def is_failed_check(self) -> bool:
        """Return whether the entry is the failure of a check, and no finding."""
        return self.kind.startswith("check-")

    @property
    def page(self) -> str:
        """Command that prints the page of the kind, from an installed package, too."""
        return f"pytest-amp finding {self.kind}"

    @property
    def place(self) -> str:
        """Module and line, as far as they are known."""
        module = f"in {self.module}" if self.module else ""
        return " ".join(part for part in (f"at {self.site}" if self.site else "", module) if part)

    def lines(self) -> list[str]:
        """Return the entry as lines of a failure: message, place, the labelled parts and the command of the page."""
        head = f"{self.severity.value:<9} {self.kind}{f' {self.place}' if self.place else ''}"
        rows = [("", self.message), *self.parts]
        if self.harm is not None:
            rows.append(("harm", f"{harm_in_words(self.harm)} as far from float64 as without it"))
        rows.append(("page", self.page))
        return [head, *(f"  {label:<9} {text}" for label, text in rows)]

    def with_harm(self, harm: float, *, is_harmful: bool) -> Entry:
        """Return the entry with its measured harm, as an error if ``is_harmful``."""
        return replace(self, harm=harm, severity=Severity.ERROR if is_harmful else self.severity)


def harm_in_words(harm: float) -> str:
    """Return a harm as reports show it; it is infinite if the unchanged step alone is not finite."""
    return "infinitely" if harm == float("inf") else f"{harm:.3g} times"


def entry_of_finding(finding: Finding, *, check: str = "linter") -> Entry:
    """Return the entry of a finding of a part of the linter."""
    return Entry(
        kind=finding.kind,
        severity=finding.severity,
        module=finding.module,
        site=finding.site,
        message=finding.message,
        parts=(("mend", finding.advice),),
        check=check,
    )


def kind_of_check(check: str) -> str:
    """Return the kind of an entry for a failed check; the parts of the linter share one."""
    return f"check-{check.partition(':')[0]}"


def entry_of_failure(check: str, failure: AmpFailure) -> Entry:
    """Return the entry of a failed check, an error: its message and its parts, without the commands.

    An argument that accepts the result is shown: ``amp.check`` takes those of its checks.
    """
    hidden = {"rerun", "line", *(("accept",) if failure.argument is None else ())}
    shown = {label: text for label, text in failure.parts.items() if text and label not in hidden}
    return Entry(
        kind="low-branch" if isinstance(failure, OtherProgram) else kind_of_check(check),
        severity=Severity.ERROR,
        module="",
        site=failure.site or "",
        message=failure.what,
        parts=tuple(shown.items()),
    )


def order(entry: Entry) -> tuple[bool, bool, float]:
    """Return the sorting key, worst first: errors, then entries with a line, then larger harm."""
    return (not entry.is_error, not entry.site, -(entry.harm or 0.0))
