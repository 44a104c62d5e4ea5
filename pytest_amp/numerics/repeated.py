"""Check that a step reproduces its values, since a difference between two runs would count as rounding."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch

from pytest_amp.cases import Case, Realised
from pytest_amp.failure import UNSEEDED, AmpFailure, is_usage_error
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.errors import is_inexact, norm
from pytest_amp.numerics.step import Step, run_float32

__tracebackhide__ = is_usage_error

#: Largest relative difference between two runs of a float32 step that differ only in the order of summation.
_REPEATED = 1e-3
_UNSEEDED = f"two runs of the step in float32 differ: {UNSEEDED}"


def unseeded(case: Case, realised: Realised, fp32: Step, conditions: Conditions) -> str | None:
    """Return the reason why a second run with the same seed differs from ``fp32``; None if it does not."""
    once, again = _floating(fp32), _again(case, realised, conditions)
    return _UNSEEDED if any(_apart([name], once, again) for name in once) else None


def expect_repeatable(case: Case, realised: Realised, fp32: Step, conditions: Conditions) -> None:
    """Raise AmpFailure if a float32 step is not reproducible, since no tolerance can be derived from its errors.

    Outputs and buffers are compared individually, but gradients together, since a gradient that is nearly zero depends
    on the order of summation.
    """
    once, again = _floating(fp32), _again(case, realised, conditions)
    single = [name for name in once if name.startswith(("output.", "buffer."))]
    if any(_apart(names, once, again) for names in (*([name] for name in single), once.keys() - {*single})):
        raise AmpFailure(
            f"{case.name}: the step computes something else each time under {conditions}",
            label_before="rule",
            before="with one seed a step has one result; the difference of two runs would pass as rounding",
            now=conditions.now("neither mixed precision nor float32 repeats itself"),
            likely=f"{_UNSEEDED}, or a count that outlives the step",
        )


def _again(case: Case, realised: Realised, conditions: Conditions) -> dict[str, torch.Tensor]:
    return _floating(run_float32(case, realised.on(conditions.device.torch_device), seed=conditions.seed))


def _floating(step: Step) -> dict[str, torch.Tensor]:
    return {name: value for name, value in step.named().items() if is_inexact(value)}


def _apart(names: Collection[str], once: Mapping[str, torch.Tensor], again: Mapping[str, torch.Tensor]) -> bool:
    """Return whether the tensors together differ by more than the order of summation explains."""
    moved = math.hypot(*(norm(once[name] - again[name]) for name in names))
    return moved > _REPEATED * math.hypot(*(norm(once[name]) for name in names))
