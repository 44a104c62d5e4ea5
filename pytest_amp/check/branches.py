"""Branches that a model takes on low-precision tensors alone, and that compute something else there."""

from __future__ import annotations

import contextlib

from pytest_amp.account import receive
from pytest_amp.cases import Case
from pytest_amp.check.entry import Entry
from pytest_amp.check.harm import Harm
from pytest_amp.check.own import visited_lines
from pytest_amp.failure import is_misuse
from pytest_amp.lint import Severity
from pytest_amp.numerics import oracle
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.prediction import ORACLE, by_hand, step_errors
from pytest_amp.numerics.step import Region, in_words, run_step

__tracebackhide__ = is_misuse

#: How far the branch may be from the float64 one, both without any rounding: constants that are made for a dtype, such
#: as its least number or its epsilon, are closer.
FAR = 0.01


def other_branches(harm: Harm) -> Entry | None:
    """Return the entry of a model that computes something else where its tensors are low; None of any other.

    Both steps are computed in float64: one whose tensors are said to be float32, and one in which they are said to have
    the dtypes of mixed precision. Without a branch they agree but for the order of sums.
    """
    case, where, device, exact = harm.case, harm.where, harm.where.device, harm.exact
    if device.type not in ORACLE:
        return None
    region = by_hand(device, where.precision, inside=True)
    try:
        predictor = oracle.Predictor(device.type, rounds=False)
        copied = harm.realised.on(device.torch_device)
        low = oracle.run_virtual(case, copied, region, predictor, seed=harm.seed).step
    except oracle.CannotFollow as lost:
        receive(lost)
        return None
    errors = {name: error for name, error in step_errors(low, exact, exact).items() if not name.startswith("buffer.")}
    far = {name: error for name, error in errors.items() if error > FAR}
    if not far:
        return None
    worst = max(far, key=lambda name: far[name])
    lines = _lines_of(case, where, where.region) - _lines_of(case, where, contextlib.nullcontext)
    shown = sorted(lines, key=lambda line: (line.rpartition(":")[0], int(line.rpartition(":")[2])))
    return Entry(
        kind="low-branch",
        severity=Severity.ERROR,
        module=worst.rpartition(".")[0] if not worst.startswith(("output.", "input")) else "",
        site=shown[0] if shown else "",
        message=f"where tensors are {where.precision.dtype_name} the model computes something else: {in_words(worst)} "
        f"is {far[worst]:.2%} off, in float64 and without any rounding"
        + (f"; lines that run there alone: {', '.join(shown[:4])}" if shown else ""),
        parts=(
            (
                "mend",
                "make the branch for low dtypes compute what the float32 branch does; test it backward, too",
            ),
        ),
    )


def _lines_of(case: Case, where: Conditions, region: Region) -> set[str]:
    """Return the user's lines that call torch in a step, in its backward pass, too."""
    with contextlib.suppress(Exception), visited_lines() as lines:
        realised = case.realise(seed=where.seed).on(where.device.torch_device)
        run_step(case, realised, region, seed=where.seed, replay=False)
    return set(lines)
