"""Whether a step computes the same when it is run again: what two runs differ by would be taken for rounding."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch

from pytest_amp.cases import Case, Realised
from pytest_amp.failure import UNSEEDED, AmpFailure, is_misuse
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.errors import is_inexact, norm
from pytest_amp.numerics.step import Step, run_wide

__tracebackhide__ = is_misuse

#: How far apart two runs of one step in float32 are that are the same but for the order of sums.
_REPEATED = 1e-3
_UNSEEDED = f"two runs of the step in float32 differ: {UNSEEDED}"


def unseeded(case: Case, realised: Realised, fp32: Step, where: Conditions) -> str | None:
    """What makes a tensor of the step another one each time, seeded as it is; None where each repeats ``fp32``'s."""
    once, again = _floating(fp32), _again(case, realised, where)
    return _UNSEEDED if any(_apart([name], once, again) for name in once) else None


def expect_repeatable(case: Case, realised: Realised, fp32: Step, where: Conditions) -> None:
    """Raises AmpFailure where a step in float32 does not repeat itself: no tolerance can be made of its errors.

    Outputs and buffers are judged one by one, gradients together: one that vanishes is nothing but the order of sums.
    """
    once, again = _floating(fp32), _again(case, realised, where)
    single = [name for name in once if name.startswith(("output.", "buffer."))]
    if any(_apart(names, once, again) for names in (*([name] for name in single), once.keys() - {*single})):
        raise AmpFailure(
            f"{case.name}: the step computes something else each time under {where}",
            label_before="rule",
            before="with one seed a step has one result; what two runs differ by would be taken for rounding",
            now=where.now("neither mixed precision nor float32 repeats itself"),
            likely=f"{_UNSEEDED}, or a count that outlives the step",
        )


def _again(case: Case, realised: Realised, where: Conditions) -> dict[str, torch.Tensor]:
    return _floating(run_wide(case, realised.on(where.device.torch_device), seed=where.seed))


def _floating(step: Step) -> dict[str, torch.Tensor]:
    return {name: value for name, value in step.named().items() if is_inexact(value)}


def _apart(names: Collection[str], once: Mapping[str, torch.Tensor], again: Mapping[str, torch.Tensor]) -> bool:
    """Whether these tensors, taken as one, are further apart than sums in another order."""
    moved = math.hypot(*(norm(once[name] - again[name]) for name in names))
    return moved > _REPEATED * math.hypot(*(norm(once[name]) for name in names))
