"""Tables of docs/reference/fingerprint.md: counts of observed and unobserved entries, differences of real devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from pytest_amp.fingerprint.data import DTYPES, REAL, Fingerprints
from pytest_amp.fingerprint.dtypes import NOT

#: The lines between which the page has the tables.
BEGIN, END = "<!-- fingerprint tables -->", "<!-- end of fingerprint tables -->"
#: The prefix of modules' names in ``module_db``; ``nn.functional`` has operators.
_MODULE, _FUNCTION = "nn.", "nn.functional."


def as_markdown(known: Fingerprints) -> str:
    """Format both tables for the last measured release of each device."""
    return "\n".join([*_counts(known), "", *_disagreements(known)])


def _counts(known: Fingerprints) -> Iterable[str]:
    yield "| device | torch | operators | modules | not examined |"
    yield "|---|---|---|---|---|"
    for device, releases in known.measured.items():
        real = device.startswith(REAL)
        expected = known.expected(device.removeprefix(REAL), DTYPES[0], releases[-1], real=real)
        texts = {name: next(text for text in of if text is not None) for name, of in expected.items()}
        observed = [name for name, text in texts.items() if not text.startswith(NOT)]
        modules = sum(name.startswith(_MODULE) and not name.startswith(_FUNCTION) for name in observed)
        why = Counter(text.removeprefix(NOT) for text in texts.values() if text.startswith(NOT))
        left = "; ".join(f"{number} {reason}" for reason, number in why.most_common())
        yield f"| {device} | {releases[-1]} | {len(observed) - modules} | {modules} | {left} |"


def _disagreements(known: Fingerprints) -> Iterable[str]:
    """Format the entries of a real device that have a line of their own, by reason."""
    yield "| on a real device otherwise, because | entries |"
    yield "|---|---|"
    by_reason: dict[str, list[str]] = {}
    for (name, device), reason in sorted(known.reasons.items()):
        if device.startswith(REAL):
            by_reason.setdefault(reason, []).append(name)
    for reason, names in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        yield f"| {reason} | {len(names)}: {', '.join(f'`{name}`' for name in names)} |"
