"""Whether a step computes the same when it is run again: what two runs differ by would be taken for rounding."""

from __future__ import annotations

from pytest_amp.cases import Case, Realised
from pytest_amp.failure import AmpFailure, is_misuse
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.errors import norm
from pytest_amp.numerics.step import Step, run_wide

__tracebackhide__ = is_misuse

#: How far apart two runs of one step in float32 are that are the same but for the order of sums.
_REPEATED = 1e-3


def unseeded(case: Case, realised: Realised, fp32: Step, where: Conditions) -> str | None:
    """What makes the step another one each time, seeded as it is; None where float32 repeats what ``fp32`` has."""
    again = run_wide(case, realised.on(where.device.torch_device), seed=where.seed).named()
    for name, value in fp32.named().items():
        if value.is_floating_point() and norm(value - again[name]) > _REPEATED * norm(value):
            return "two runs of the step in float32 differ: random numbers that torch does not seed (Python's, say)"
    return None


def expect_repeatable(case: Case, realised: Realised, fp32: Step, where: Conditions) -> None:
    """Raises AmpFailure where a step in float32 does not repeat itself: no tolerance can be made of its errors."""
    differs = unseeded(case, realised, fp32, where)
    if differs is not None:
        raise AmpFailure(
            f"{case.name}: the step computes something else each time under {where}",
            label_before="rule",
            before="with one seed a step has one result; what two runs differ by would be taken for rounding",
            now=where.now("neither mixed precision nor float32 repeats itself"),
            likely=f"{differs}, or a count that outlives the step",
        )
