"""Known faults of a run, as lines of its reports."""

from __future__ import annotations

from pytest_amp.run.result import AcceptedFault, Run


def known_faults(run: Run) -> list[str]:
    """Return a line for each fault of --amp-known: how often it failed, or that none of its tests ran."""
    return [f"{known.fault.name}: {_count(known)}: {known.fault.reason} ({known.fault.report})" for known in run.known]


def _count(known: AcceptedFault) -> str:
    if known.failed is not None:
        return f"{known.failed} failed"
    return "nothing of it ran" if known.may_exist else "nothing of it ran, and the baseline has no such key"
