"""Compare a step in mixed precision with its prediction, tensor by tensor."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from pytest_amp.cases import Case
from pytest_amp.numerics import tolerance
from pytest_amp.numerics.cancellation import float32_errors
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.errors import dense, exceeds, is_inexact, real_parts, relative_error
from pytest_amp.numerics.oracle.sums import most_of
from pytest_amp.numerics.prediction import Prediction, predict
from pytest_amp.numerics.realised import realise
from pytest_amp.numerics.step import Step, run_step


@dataclass(frozen=True)
class Compared:
    """Comparison of one tensor of a step.

    ``error`` is E(amp, exact), ``noise`` E(reference, exact), and ``plain`` E(amp, fp32). ``distance`` is
    E(amp, reference) in units of the noise. ``from_model`` is E(amp, predicted) in the same units, or 0 if the rounding
    oracle has no prediction. ``allowed`` is the largest allowed ``error``, before ``tolerance_scale`` is applied;
    ``float32`` is the part of it that float32 itself explains, if that was measured, and ``short`` the float32 error
    that any tensor may have. ``equal`` is whether the tensor is bitwise equal to the reference, including its dtype.
    """

    name: str
    elements: int
    error: float
    noise: float
    plain: float
    distance: float
    allowed: float
    equal: bool
    factor: float = tolerance.CERTAIN
    from_model: float = 0.0
    float32: float = 0.0
    short: float = 0.0

    @property
    def is_doubtful(self) -> bool:
        """Return whether the predicted rounding does not explain the error."""
        far = self.from_model > tolerance.FARTHEST or self.distance > tolerance.WORST_DISTANCE
        return exceeds(self.error, self.allowed) or exceeds(self.plain, self.allowed_plain) or far

    @property
    def of_float32(self) -> float:
        """Largest allowed E(fp32, exact). By the triangle inequality, E(amp, fp32) may exceed E(amp, exact) by it.

        Below the geometric mean of the unit roundoffs of float32 and the low dtype, no value was rounded to the latter
        (``oracle.sums``). A larger error, due to long sums or cancellation, has to be measured.
        """
        return max(self.short, self.float32)

    @property
    def allowed_plain(self) -> float:
        """Largest allowed E(amp, fp32), before ``tolerance_scale`` is applied."""
        return max(self.allowed, self.error) + self.of_float32

    @property
    def excess(self) -> float:
        """Error in units of the predicted error: 1 if it is as predicted, less than 1 if it is smaller."""
        return self.factor * self.error / self.allowed if 0 < self.allowed < math.inf else math.inf

    @property
    def unit(self) -> float:
        """Expected error: the noise, or the least error that counts as noise, and the part that float32 explains."""
        return self.allowed / self.factor

    def excess_over_noise(self, u: float) -> float:
        """Return E(amp, exact) in units of the noise, or of the least error that counts as noise."""
        return self.error / max(self.noise, tolerance.floor(self.elements, u))


#: Function that returns the error that float32 explains, by tensor; see ``cancellation``.
Float32Errors = Callable[[], Mapping[str, float]]


def compare(
    prediction: Prediction, amp: Step, fp32: Step, *, u: float, float32: Float32Errors | None = None
) -> list[Compared]:
    """Compare each finite floating or complex tensor that both steps have, in the order of ``Step.named``.

    ``float32`` is called if an error is larger than the predicted rounding explains.
    """
    plain = _compared(prediction, amp, fp32, {}, u=u)
    if float32 is None or not any(tensor.is_doubtful for tensor in plain):
        return plain
    errors = float32()
    float32_noise = {tensor.name: errors.get(tensor.name, 0.0) for tensor in plain if tensor.is_doubtful}
    return _compared(prediction, amp, fp32, float32_noise, u=u)


def _compared(
    prediction: Prediction, amp: Step, fp32: Step, float32: Mapping[str, float], *, u: float
) -> list[Compared]:
    exact, reference = prediction.exact.named(), prediction.reference.named()
    actual, plain = amp.named(), fp32.named()
    factor = tolerance.CERTAIN if prediction.predicted is None else tolerance.EXCESS
    model = prediction.predicted.named() if prediction.predicted is not None else {}
    rows = []
    for name, value in actual.items():
        if name not in prediction.noise or name not in plain or name not in reference:
            continue  # a buffer that the forward pass registers in some steps only
        if not is_inexact(exact[name]) or not value.isfinite().all():
            continue
        size, noise, float32_noise = prediction.sizes[name], prediction.noise[name], float32.get(name, 0.0)
        least = max(noise, tolerance.floor(value.numel(), u))
        far = relative_error(value, reference[name], scale=size) - 2 * float32_noise  # both include float32's own error
        off = relative_error(value, model[name], scale=size) - float32_noise if name in model else 0.0
        rows.append(
            Compared(
                name=name,
                elements=value.numel(),
                error=relative_error(value, exact[name], scale=size),
                noise=noise,
                plain=relative_error(value, plain[name], scale=size),
                distance=far / least if far > 0 else 0.0,
                allowed=tolerance.allowed(noise, value.numel(), u, factor) + float32_noise,
                factor=factor,
                equal=same(value, reference[name]),
                from_model=off / least if off > 0 else 0.0,
                float32=float32_noise,
                short=most_of(u),
            )
        )
    return rows


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors are bitwise equal, except for the sign of zero; NaN equals NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = real_parts(dense(a)), real_parts(dense(b))
    return bool(torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isfinite(), b.isfinite()))


def median_distance(compared: Sequence[Compared]) -> float:
    """Return the median distance of a step's tensors from its reference."""
    return statistics.median(tensor.distance for tensor in compared) if compared else 0.0


#: Number of draws after the first that confirm an excess, and the largest number of draws for a tensor with few
#: elements behind a reduction in any order; see ``tolerance``.
_MORE_DRAWS, _MOST_DRAWS = 2, 14


def _excess(tensor: Compared) -> float:
    return tensor.excess


def confirmed(  # noqa: PLR0913  # keywords of one decision
    bad: Sequence[Compared],
    case: Case,
    conditions: Conditions,
    step: Callable[[int, float], Step],
    *,
    limit: float,
    measure: Callable[[Compared], float] = _excess,
    any_order: bool = False,
) -> list[Compared]:
    """Return the tensors of ``bad``, worst first, whose excess is not due to chance. No other function draws again.

    These are the tensors whose median ``measure`` over three draws exceeds ``limit``. With ``any_order``, because a
    reduction of the step adds in any order, the measure is taken over all draws together, of which tensors with few
    elements need more. A tensor whose measure is not finite is returned without further draws. ``step(seed,
    loss_scale)`` runs the case in mixed precision with other values.
    """
    scale = conditions.tolerance_scale
    if not bad or not math.isfinite(measure(bad[0])):
        return list(bad)
    more = _draws_in_any_order(bad) - 1 if any_order else _MORE_DRAWS
    further = (_drawn(case, conditions, step, seed) for seed in range(conditions.seed + 1, conditions.seed + 1 + more))
    draws = [{tensor.name: tensor for tensor in draw} for draw in (bad, *further)]
    if any_order:
        return [tensor for tensor in bad if _together(tensor.name, draws, measure) > limit * scale]
    medians = {
        tensor.name: statistics.median(measure(draw[tensor.name]) if tensor.name in draw else 0.0 for draw in draws)
        for tensor in bad
    }
    return [tensor for tensor in bad if medians[tensor.name] > limit * scale]


def _draws_in_any_order(bad: Sequence[Compared]) -> int:
    """Return the number of draws after which chance explains no ratio of EXCESS: see ``tolerance.spread``."""
    fewest = max(min(tensor.elements for tensor in bad), 1)
    enough = math.ceil((tolerance.DEVIATIONS / math.log(tolerance.EXCESS)) ** 2 / fewest)
    return min(max(enough, 1 + _MORE_DRAWS), _MOST_DRAWS)


def _together(name: str, draws: Sequence[Mapping[str, Compared]], measure: Callable[[Compared], float]) -> float:
    """Return the root mean square of a measured error over all draws, in units of that of the expected error.

    It is divided by the part of ``tolerance.spread`` that is above EXCESS, if the draws are too few.
    """
    tensors = [draw[name] for draw in draws if name in draw]
    expected = math.hypot(*(tensor.unit for tensor in tensors))
    measured = math.hypot(*(measure(tensor) * tensor.unit for tensor in tensors))
    by_chance = tolerance.spread(sum(tensor.elements for tensor in tensors)) / tolerance.EXCESS
    return measured / expected / max(1.0, by_chance) if expected else math.inf


def _drawn(case: Case, conditions: Conditions, step: Callable[[int, float], Step], seed: int) -> list[Compared]:
    """Compare a step with the values of another seed."""
    realised = realise(case, conditions, seed=seed)
    fp32 = run_step(case, realised.on(conditions.device.torch_device), contextlib.nullcontext, seed=seed)
    prediction = predict(case, realised, conditions.device, conditions.precision, seed=seed)
    result = step(seed, prediction.loss_scale)
    float32 = partial(float32_errors, case, realised, fp32, prediction, replace(conditions, seed=seed))
    return compare(prediction, result, fp32, u=conditions.precision.u, float32=float32)
