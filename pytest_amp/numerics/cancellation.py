"""Float32's own error of each tensor where terms cancel, measured on the case by several draws.

A gradient that is nearly zero because large terms cancel, such as the gradient of the sum of squares of a norm's
output, consists in float32 of rounding errors. Mixed precision makes these errors, too, with other values, and a model
that rounds each operator once does not predict their size, since kernels round internally. One float32 step does not
predict it, either: in the worst case a single rounding, that of a row's norm or mean, is shared by all remaining
errors, so that the errors of two steps are two draws of one normal variable, and the first is more than four times the
second in 16 of 100.

Therefore the step is run DRAWS more times in float32, with each parameter moved to a neighbouring float32 value, which
redraws every rounding. The root mean square of the errors estimates the standard deviation of one error, and the ratio
of another error to it has Student's distribution with as many degrees of freedom as there are draws (W. S. Gosset, The
probable error of a mean, Biometrika 6 (1908), 1-25), with lighter tails if more than one rounding is shared. It exceeds
STUDENT once in 10 000 draws. Random changes of the last place to detect cancellation are the idea of D. S. Parker,
Monte Carlo arithmetic (1997), and of the CESTAC method (J. Vignes, A stochastic arithmetic for reliable scientific
computation, Math. Comput. Simul. 35 (1993), 233-261).

The measurement is used only if every operator of the float32 step is as exact as float32: TF32, a broken kernel or a
model that rounds by itself is not cancellation.
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

#: Float32 steps after the first.
DRAWS = 8
#: The value that the absolute value of Student's t with DRAWS + 1 degrees of freedom exceeds once in 10 000 draws.
STUDENT = 6.59


def float32_errors(
    case: Case, realised: Realised, fp32: Step, prediction: Prediction, where: Conditions
) -> dict[str, float]:
    """Return by tensor the largest error that float32 explains: STUDENT root mean squares of float32's own errors.

    The result is empty if float32 explains nothing, since operators of its step do not compute in float32.
    """
    if not _is_float32(case, realised, where):
        return {}
    steps = [fp32]
    for draw in range(DRAWS):
        moved = realised.on(where.device.torch_device)
        _move(moved.model, torch.Generator("cpu").manual_seed(draw))
        steps.append(run_step(case, moved, contextlib.nullcontext, seed=where.seed))
    exact, actual = prediction.exact.named(), [step.named() for step in steps]
    errors = {}
    for name, size in prediction.sizes.items():
        if is_inexact(exact[name]) and all(name in step for step in actual):
            squares = [relative_error(step[name], exact[name], scale=size) ** 2 for step in actual]
            errors[name] = STUDENT * statistics.fmean(squares) ** 0.5
    return errors


def _is_float32(case: Case, realised: Realised, where: Conditions) -> bool:
    """Return whether every operator of the step without autocast computes in float32, and as exactly as that."""
    low = where.precision.dtype
    try:
        calls = observed_step(case, where.device, low, seed=where.seed, autocast=False, realised=realised)
    except Exception:  # noqa: BLE001  # it runs only inside a region
        return False
    dtypes = {result.dtype for call in calls for result in call.results}
    return not verdict.faults(calls, low, where.tolerance_scale) and not dtypes.intersection(LOW)


def _move(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Move each float32 parameter to a neighbouring value, up or down at random, also complex parts; zeros stay."""
    eps = torch.finfo(torch.float32).eps
    with torch.no_grad():
        for parameter in model.parameters():
            values = real_parts(parameter)
            if values.dtype == torch.float32:
                signs = torch.randint(2, values.shape, generator=generator, device="cpu") * 2 - 1
                values.mul_((1 + eps * signs).to(values.device))
