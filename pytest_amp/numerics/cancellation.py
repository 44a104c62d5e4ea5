"""Measure float32's own error of each tensor, which matters if terms cancel, over several runs of the case.

Some gradients are nearly zero because large terms cancel, such as the gradient of the sum of squares of a
normalization's output. In float32 such a gradient consists of rounding errors. Mixed precision makes errors of the same
kind, but a model that rounds each operator once does not predict their size, since kernels round internally. A single
float32 step does not predict it, either. In the worst case all remaining errors come from one rounding, that of a row's
norm or mean. The errors of two steps are then two draws of one normal variable, and the first is more than four times
the second in 16 of 100.

Therefore the step is run DRAWS more times in float32, with each parameter moved to a neighbouring float32 value, which
redraws every rounding. The root mean square of the errors estimates the standard deviation of one error. The ratio of
another error to it has Student's t distribution with as many degrees of freedom as there are draws (W. S. Gosset, The
probable error of a mean, Biometrika 6 (1908), 1-25), and lighter tails if the errors come from more than one rounding.
It exceeds STUDENT once in 10 000 draws. Detecting cancellation by random changes of the last place is due to D. S.
Parker, Monte Carlo arithmetic (1997), and the CESTAC method (J. Vignes, A stochastic arithmetic for reliable scientific
computation, Math. Comput. Simul. 35 (1993), 233-261).

The measurement is used only if every operator of the float32 step has float32 accuracy: the errors of TF32, a broken
kernel or a model with casts of its own are not cancellation.
"""

from __future__ import annotations

import contextlib
import statistics

import torch

from pytest_amp.cases import Case, Realised
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.errors import is_inexact, real_parts, relative_error
from pytest_amp.numerics.oracle import observed_step, verdict
from pytest_amp.numerics.oracle.operation import LOW
from pytest_amp.numerics.prediction import Prediction
from pytest_amp.numerics.step import Step, run_step

#: Number of float32 steps after the first.
DRAWS = 8
#: Quantile that the absolute value of Student's t with DRAWS + 1 degrees of freedom exceeds once in 10 000 draws.
STUDENT = 6.59


def float32_errors(
    case: Case, realised: Realised, fp32: Step, prediction: Prediction, conditions: Conditions
) -> dict[str, float]:
    """Return the largest error that float32 explains, by tensor: STUDENT times the root mean square of its errors.

    The result is empty if operators of the float32 step do not compute in float32: their errors explain nothing.
    """
    if not _is_float32(case, realised, conditions):
        return {}
    steps = [fp32]
    for draw in range(DRAWS):
        moved = realised.on(conditions.device.torch_device)
        _move(moved.model, torch.Generator("cpu").manual_seed(draw))
        steps.append(run_step(case, moved, contextlib.nullcontext, seed=conditions.seed))
    exact, actual = prediction.exact.named(), [step.named() for step in steps]
    errors = {}
    for name, size in prediction.sizes.items():
        if is_inexact(exact[name]) and all(name in step for step in actual):
            squares = [relative_error(step[name], exact[name], scale=size) ** 2 for step in actual]
            errors[name] = STUDENT * statistics.fmean(squares) ** 0.5
    return errors


def _is_float32(case: Case, realised: Realised, conditions: Conditions) -> bool:
    """Return whether every operator of the step without autocast computes in float32, with float32 accuracy."""
    low = conditions.precision.dtype
    try:
        calls = observed_step(case, conditions.device, low, seed=conditions.seed, autocast=False, realised=realised)
    except Exception:  # noqa: BLE001  # it runs only inside a region
        return False
    dtypes = {result.dtype for call in calls for result in call.results}
    return not verdict.faults(calls, low, conditions.tolerance_scale) and not dtypes.intersection(LOW)


def _move(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Move each float32 parameter, or complex part, to the next value up or down at random; zeros are unchanged."""
    eps = torch.finfo(torch.float32).eps
    with torch.no_grad():
        for parameter in model.parameters():
            values = real_parts(parameter)
            if values.dtype == torch.float32:
                signs = torch.randint(2, values.shape, generator=generator, device="cpu") * 2 - 1
                values.mul_((1 + eps * signs).to(values.device))
