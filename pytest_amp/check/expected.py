"""Findings that a test accepts: ``expect=``, by module and kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pytest_amp.check.entry import Entry
from pytest_amp.failure import AmpUsageError, is_usage_error
from pytest_amp.lint import Severity

__tracebackhide__ = is_usage_error

#: Type of ``expect=``: kinds of findings by module, or by a pattern of modules.
Expected = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True)
class Split:
    """Entries that are reported (``counted``), and entries that the test accepts."""

    counted: tuple[Entry, ...]
    accepted: tuple[Entry, ...]


def expect_expected(expect: object) -> dict[str, tuple[str, ...]]:
    """Validate ``expect``, and return a tuple of kinds by module. Raises AmpUsageError for an invalid argument."""
    if expect is None:
        return {}
    valid = "kinds of findings by module, such as {'layers.0.norm': 'low-norm', '': ['low-loss']}"
    if not isinstance(expect, Mapping):
        raise AmpUsageError(f"expect={expect!r}; expected {valid}")
    result = {}
    for module, kinds in expect.items():
        names = (kinds,) if isinstance(kinds, str) else tuple(kinds) if isinstance(kinds, Sequence) else ()
        if not isinstance(module, str) or not names or not all(isinstance(name, str) and name for name in names):
            raise AmpUsageError(f"expect has {module!r}: {kinds!r}; expected {valid}")
        result[module] = names
    return result


def split(entries: Iterable[Entry], expect: Mapping[str, tuple[str, ...]]) -> Split:
    """Split entries into those that are reported and those that ``expect`` accepts.

    A pair of module and kind in ``expect`` that matches no entry becomes an error: the accepted finding is gone.
    """
    counted: list[Entry] = []
    accepted: list[Entry] = []
    used: set[tuple[str, str]] = set()
    for entry in entries:
        pairs = [
            (module, kind)
            for module, kinds in expect.items()
            for kind in kinds
            if kind == entry.kind and (module == entry.module or fnmatchcase(entry.module, module))
        ]
        used.update(pairs)
        (accepted if pairs else counted).append(entry)
    for module, kinds in expect.items():
        counted += [_gone(module, kind) for kind in kinds if (module, kind) not in used]
    return Split(tuple(counted), tuple(accepted))


def _gone(module: str, kind: str) -> Entry:
    return Entry(
        kind="expected-finding-gone",
        severity=Severity.ERROR,
        module=module,
        site="",
        message=f"expect= accepts {kind} in {module or 'the model'}, and it does not occur",
        parts=(("mend", "remove it from expect=, where it would hide a later one"),),
    )
