"""Likely cause of a difference from a baseline: the differences of torch and of the machine between the two runs."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_amp.record.compare import device_of
from pytest_amp.record.observation import Value, canonical

#: Provenance that identifies torch, with its name in messages.
_TORCH = (("torch", "torch"), ("torch_git", "torch's commit"), ("cpu_capability", "the CPU's instructions"))


def likely_cause(old: Mapping[str, Value], new: Mapping[str, Value], device: str) -> str:
    """Return the differences of two provenances, as the likely cause of a changed result on ``device``."""
    changed = [
        f"{words}: {old[name]} before, {new[name]} now"
        for name, words in _TORCH
        if name in old and name in new and canonical(old[name]) != canonical(new[name])
    ]
    before, now = device_of(old, device), device_of(new, device)
    changed += [
        f"{device}'s {name}: {before[name]} before, {now[name]} now"
        for name in sorted(before.keys() & now.keys())
        if canonical(before[name]) != canonical(now[name])
        and name not in dict(_TORCH)
        and not any(str(value).startswith("unknown (") for value in (before[name], now[name]))
    ]
    if changed:
        return f"{'; '.join(changed[:3])}, or the project's own code"
    return "the project's own code or its libraries: torch and the device are those of the baseline"
