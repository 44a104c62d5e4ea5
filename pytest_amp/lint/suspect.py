"""Suspects, and their merging into findings: one finding for each kind and function."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from pytest_amp.lint.finding import Finding, Severity
from pytest_amp.lint.kinds import KINDS
from pytest_amp.lint.place import Place
from pytest_amp.precision import dtype_name

#: Kinds of low-precision arithmetic, the most significant first. Suspects of these kinds in one function are merged
#: into one finding of the most significant kind.
ARITHMETIC = (
    *("low-loss", "low-softmax", "low-norm", "low-angles", "low-running-sum", "low-log", "low-power"),
    *("rounded-positions", "useless-widening", "own-cast"),
)


@dataclass(frozen=True)
class Suspect:
    """Operator, or fact, that indicates a finding.

    ``what`` is the template of the message, with the fields ``{operators}`` and ``{dtype}``. ``number`` is the position
    in the order of execution. A finding reports the line of its first suspect that ``is_primary``, or else of its first
    suspect. Suspects that are all ``is_supporting`` give no finding.
    """

    kind: str
    what: str
    advice: str
    place: Place
    severity: Severity = Severity.WARNING
    module: str | None = None
    operators: tuple[str, ...] = ()
    dtype: torch.dtype | None = None
    number: int = 0
    detail: str = ""
    is_primary: bool = False
    is_supporting: bool = False


@dataclass
class _Group:
    """Suspects that are merged into one finding."""

    suspects: list[Suspect] = field(default_factory=list)

    def finding(self) -> Finding:
        """Return the finding, with the most significant kind, one line, and all operators."""
        ranked = sorted(self.suspects, key=lambda suspect: (_rank(suspect.kind), suspect.number))
        chief = ranked[0]
        ordered = sorted(self.suspects, key=lambda suspect: suspect.number)
        lined = [suspect for suspect in ordered if suspect.place.line] or ordered
        first = next((suspect for suspect in lined if suspect.is_primary), lined[0])
        is_error = any(suspect.severity is Severity.ERROR for suspect in ordered)
        modules = list(dict.fromkeys(suspect.module for suspect in ordered if suspect.module is not None))
        assert chief.kind in KINDS, chief.kind
        return Finding(
            kind=chief.kind,
            severity=Severity.ERROR if is_error else Severity.WARNING,
            module=modules[0] if modules else "",
            site=first.place.line,
            message=self._message(chief, ordered, modules),
            advice=chief.advice,
        )

    def _message(self, chief: Suspect, ordered: Sequence[Suspect], modules: Sequence[str]) -> str:
        operators = list(dict.fromkeys(name for suspect in ordered for name in suspect.operators))
        dtypes = list(dict.fromkeys(dtype_name(suspect.dtype) for suspect in ordered if suspect.dtype is not None))
        words = chief.what.replace("{operators}", joined(operators)).replace("{dtype}", " and ".join(dtypes))
        details = list(dict.fromkeys(suspect.detail for suspect in ordered if suspect.detail))
        lines = list(dict.fromkeys(suspect.place.line.rpartition(":")[2] for suspect in ordered if suspect.place.line))
        notes = details[:2]
        if len(lines) > 1 and not chief.place.library:
            notes.append(f"lines {joined(lines[:6])}")
        if chief.place.library:
            notes.append(f"in {chief.place.library}")
        if len(modules) > 1:
            notes.append(f"in {len(modules)} modules")
        return f"{words} ({'; '.join(notes)})" if notes else words


def findings_of(suspects: Iterable[Suspect]) -> tuple[Finding, ...]:
    """Merge suspects of one function into findings, errors first, in the order of the program."""
    groups: dict[tuple[object, ...], _Group] = {}
    for suspect in suspects:
        family = "arithmetic" if suspect.kind in ARITHMETIC else suspect.kind
        where = suspect.place.key if suspect.place.key[0] else (suspect.place.line,)
        groups.setdefault((family, *where), _Group()).suspects.append(suspect)
    findings = [group.finding() for group in groups.values() if not all(s.is_supporting for s in group.suspects)]
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: finding.severity is not Severity.ERROR))


def joined(words: Sequence[str]) -> str:
    """Return words joined as in a sentence: ``exp, sum and log``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def _rank(kind: str) -> int:
    return ARITHMETIC.index(kind) if kind in ARITHMETIC else 0
