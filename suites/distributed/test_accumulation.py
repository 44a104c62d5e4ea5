"""Micro-batches over ranks: gradients accumulate in float32 or the policy's dtype, and are reduced on request."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import RankGroup
from pytest_amp.failure import AmpFailure

from . import ranks_accumulation
from .expectations import expect_ranks_agree, expect_same, needs_streams, settings
from .models import SIZE, Tensors, backward, gradients, mean, realised, rows_of
from .policies import OF_FSDP2, POLICIES, Policy, averaged


@dataclass(frozen=True)
class _Unit:
    """Wrapper that accumulates and reduces, and the precision in which it does."""

    unit: str
    policy: str = "autocast"
    options: dict[str, Any] = field(default_factory=dict)

    def rule(self) -> Policy:
        return (OF_FSDP2 if self.unit == "FSDP2" else POLICIES)[self.policy]


_UNITS = {
    "DDP": _Unit("DDP"),
    "DDP, bucket views": _Unit("DDP", options={"gradient_as_bucket_view": True}),
    **{
        f"{unit}, {policy}": _Unit(unit, policy)
        for unit in ("FSDP1", "FSDP2")
        for policy in ("autocast", "low", "low, reduced in float32")
    },
}
_ORDINARY = [name for name, unit in _UNITS.items() if unit.policy != "low" and not unit.options]
#: The backward passes that reduce.
_PLANS = {"after the last": [False, False, True], "after each": [True, True, True]}


def _cases() -> list[Any]:
    """Return each unit once for the ordinary tier, DDP with both plans; mark the remaining ones for the long tier."""
    return [
        pytest.param(
            unit,
            plan,
            id=f"{unit}-{plan}",
            marks=[] if unit == "DDP" or (plan == "after the last" and unit in _ORDINARY) else [pytest.mark.amp_long],
        )
        for unit in _UNITS
        for plan in _PLANS
    ]


@pytest.mark.parametrize(("unit", "plan"), _cases())
def test_micro_batches_add_up(amp: SuiteAmp, ranks: RankGroup, unit: str, plan: str) -> None:
    """Sums are bitwise equal with ``no_sync`` (or ``set_requires_gradient_sync(False)``) and without; it sends nothing.

    Unreduced parts accumulate in float32 under autocast, in the reduction's dtype with a policy in FSDP2, and in the
    parameters' dtype in FSDP1.
    """
    case, reduced = _UNITS[unit], _PLANS[plan]
    if case.unit == "FSDP2":
        needs_streams(amp)
    rule = case.rule()
    arguments = {"unit": case.unit, "policy": rule.requested(amp), "region": rule.region, "options": case.options}
    answers = ranks.ask(ranks_accumulation.accumulate, settings(amp, **arguments, reduced=reduced))
    _expect_sent(amp, answers, reduced, rule.reduced(amp), subject=unit)
    expect_ranks_agree(amp, answers, "gradients", subject=f"{unit}, reduced {plan}")
    least = 2.0**-23 * sum(reduced) if rule.reduced(amp) == "float16" else 0.0
    expected = _expected(amp, case, reduced)
    expect_same(amp, answers[0]["gradients"], expected, subject=f"{unit}, reduced {plan}", least=least)


def _expect_sent(
    amp: SuiteAmp, answers: list[dict[str, Any]], reduced: list[bool], dtype: str, *, subject: str
) -> None:
    """Raise AmpFailure unless just the backward passes that should reduce send anything, in ``dtype``."""
    for number, answer in enumerate(answers):
        dtypes_of_calls = [sorted({sent for _, *dtypes in calls for sent in dtypes}) for calls in answer["sent"]]
        expected = [[dtype] if on else [] for on in reduced]
        if dtypes_of_calls != expected:
            raise AmpFailure(
                f"{subject} on rank {number} of {amp.target.id} reduces the wrong micro-batches",
                label_before="rule",
                before=f"the dtypes that each backward pass sends are {expected}",
                now=str(dtypes_of_calls),
                likely="no_sync is ignored, or the reduction has a different dtype",
            )


def _expected(amp: SuiteAmp, case: _Unit, reduced: list[bool]) -> Tensors:
    """Return the reference, computed by manual casts."""
    rule = case.rule()
    added = getattr(torch, rule.gathered(amp) if case.unit == "FSDP1" else rule.reduced(amp))
    parts = _micro_batches(amp, rule, len(reduced))
    total: Tensors = {}
    waiting: list[Tensors] = [{} for _ in range(SIZE)]
    for number, on in enumerate(reduced):
        waiting = [_sum(rest, part[number], added) for rest, part in zip(waiting, parts, strict=True)]
        if on and case.unit == "DDP":
            # Gradients that were reduced before are reduced again, with the new ones.
            total = mean(waiting)
            waiting = [dict(total) for _ in range(SIZE)]
        elif on:
            total = _sum(total, averaged(waiting, getattr(torch, rule.reduced(amp))), torch.float32)
            waiting = [{} for _ in range(SIZE)]
    return total


def _sum(total: Tensors, part: Tensors, dtype: torch.dtype) -> Tensors:
    cast = {name: value.to(dtype) for name, value in part.items()}
    return {name: total[name] + value if total else value for name, value in cast.items()}


def _micro_batches(amp: SuiteAmp, rule: Policy, count: int) -> list[list[Tensors]]:
    """Return the gradients of each rank's micro-batches, with weights and inputs cast as the policy says."""
    region: Any = amp.autocast if rule.region else contextlib.nullcontext
    sums = []
    for number in range(SIZE):
        parts = []
        for part in range(count):
            instance = realised(amp.config.seed, amp.device.torch_device)
            rows = ranks_accumulation.micro_batch(rows_of(number, instance.batch), part, count)
            if rule.param is not None:
                instance.model.to(amp.dtype)
                rows["inputs"] = rows["inputs"].to(amp.dtype)
            backward(instance.model, rows, region)
            parts.append(gradients(instance.model))
        sums.append(parts)
    return sums
