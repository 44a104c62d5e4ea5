"""In which dtypes autocast is on while a training step computes: in none, where somebody forgot the region."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_amp.failure import AmpFailure


def note(device_type: str, seen: set[torch.dtype]) -> None:
    """Add the autocast dtype of the device type, if autocast is on."""
    if torch.is_autocast_enabled(device_type):
        seen.add(torch.get_autocast_dtype(device_type))


@contextmanager
def noted_at_calls(device_type: str, seen: set[torch.dtype]) -> Iterator[None]:
    """For the duration, ``note`` at each function of torch that is called: within modules, too."""

    class Noting(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            note(device_type, seen)
            return func(*args, **(kwargs or {}))

    with Noting():
        yield


def without_region(name: str, seen: set[torch.dtype], wanted: torch.dtype) -> AmpFailure | None:
    """What is wrong with a training step in which autocast was on in the dtypes ``seen``."""
    if wanted in seen:
        return None
    others = ", ".join(sorted(_name(dtype) for dtype in seen))
    return AmpFailure(
        f"{name}: the training step computes nothing under autocast({_name(wanted)})",
        label_before="rule",
        before="the forward pass is in a region: with iteration.autocast()",
        now=f"autocast is on in {others} only" if seen else "autocast is never on",
        likely="a region of its own with another dtype, where it has to be iteration.autocast()"
        if seen
        else "the region is missing, disabled, or closed before the forward pass",
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
