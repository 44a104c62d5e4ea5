"""The tables of docs/fingerprint.md: what is looked at and what is not, and where real and fake devices disagree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pytest_amp.fingerprint.data import DTYPES, REAL, Fingerprints
from pytest_amp.fingerprint.dtypes import NOT

#: The lines between which the page has the tables.
BEGIN, END = "<!-- fingerprint tables -->", "<!-- end of fingerprint tables -->"
#: What begins the name of a module in ``module_db``; ``nn.functional`` has operators.
_MODULE, _FUNCTION = "nn.", "nn.functional."


def as_markdown(known: Fingerprints) -> str:
    """Both tables, each of the last release that was measured there."""
    return "\n".join([*_counts(known), "", *_disagreements(known)])


def _counts(known: Fingerprints) -> Iterable[str]:
    yield "| device | torch | operators | modules | not looked at |"
    yield "|---|---|---|---|---|"
    for device, releases in known.measured.items():
        real = device.startswith(REAL)
        expected = known.expected(device.removeprefix(REAL), DTYPES[0], releases[-1], real=real)
        texts = {name: next(text for text in of if text is not None) for name, of in expected.items()}
        seen = [name for name, text in texts.items() if not text.startswith(NOT)]
        modules = sum(name.startswith(_MODULE) and not name.startswith(_FUNCTION) for name in seen)
        why = Counter(text.removeprefix(NOT) for text in texts.values() if text.startswith(NOT))
        left = "; ".join(f"{number} {reason}" for reason, number in why.most_common())
        yield f"| {device} | {releases[-1]} | {len(seen) - modules} | {modules} | {left} |"


def _disagreements(known: Fingerprints) -> Iterable[str]:
    """By reason: which entries of a real device have a line of their own."""
    yield "| on a real device otherwise, because | entries |"
    yield "|---|---|"
    by_reason: dict[str, list[str]] = {}
    for (name, device), reason in sorted(known.reasons.items()):
        if device.startswith(REAL):
            by_reason.setdefault(reason, []).append(name)
    for reason, names in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        yield f"| {reason} | {len(names)}: {', '.join(f'`{name}`' for name in names)} |"
