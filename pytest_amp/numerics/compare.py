"""Compare a step in mixed precision with its prediction, tensor by tensor; draw an excess again before it counts."""

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
from pytest_amp.numerics.redraw import FURTHER_DRAWS, redrawn
from pytest_amp.numerics.step import Step, run_step


@dataclass(frozen=True)
class Compared:
    """Comparison of one tensor of a step.

    E(a, b) is the relative error of a with respect to b (``errors.relative_error``). Here, amp is the step under
    autocast, exact the step in float64, reference the step with manual casts, predicted the step that the rounding
    oracle predicts, and fp32 the step in float32.

    - ``error`` is E(amp, exact); ``plain`` is E(amp, fp32).
    - ``noise`` is the error that rounding should cause (``Prediction.noise``).
    - ``distance`` is E(amp, reference) and ``from_model`` is E(amp, predicted), both in units of the noise;
      ``from_model`` is 0 if there is no prediction.
    - ``allowed`` is the largest allowed ``error``, before it is multiplied by ``tolerance_scale``. It includes
      ``float32``, the measured error of float32 itself (0 if not measured).
    - ``short`` is the float32 error that is allowed without a measurement, as that of a short sum.
    - ``factor`` is the largest allowed ratio of ``error`` to the expected error.
    - ``equal`` is whether the tensor is equal to the reference in its dtype and bits (``same``).
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
        """Return whether an error or a distance is larger than the predicted rounding explains."""
        far = self.from_model > tolerance.FARTHEST or self.distance > tolerance.WORST_DISTANCE
        return exceeds(self.error, self.allowed) or exceeds(self.plain, self.allowed_plain) or far

    @property
    def of_float32(self) -> float:
        """Largest allowed E(fp32, exact).

        By the triangle inequality, E(amp, fp32) may exceed E(amp, exact) by this error. An error of at most ``short``,
        the geometric mean of the unit roundoffs of float32 and the low dtype, is always allowed: it shows that no value
        was rounded to the low dtype (``oracle.sums``). A larger error, due to a long sum or cancellation, is allowed
        only if it was measured.
        """
        return max(self.short, self.float32)

    @property
    def allowed_plain(self) -> float:
        """Largest allowed E(amp, fp32), before ``tolerance_scale`` is applied."""
        return max(self.allowed, self.error) + self.of_float32

    @property
    def excess(self) -> float:
        """Ratio of the error to the expected error (``unit``)."""
        return self.factor * self.error / self.allowed if 0 < self.allowed < math.inf else math.inf

    @property
    def unit(self) -> float:
        """Expected error: the noise, but at least ``tolerance.floor``, plus ``float32 / factor``."""
        return self.allowed / self.factor

    def excess_over_noise(self, u: float) -> float:
        """Return the ratio of E(amp, exact) to the noise, which counts as at least ``tolerance.floor``."""
        return self.error / max(self.noise, tolerance.floor(self.elements, u))


#: Function that measures the error of float32 itself, by tensor; see ``cancellation.float32_errors``.
Float32Errors = Callable[[], Mapping[str, float]]


def compare(
    prediction: Prediction, amp: Step, fp32: Step, *, u: float, float32: Float32Errors | None = None
) -> list[Compared]:
    """Compare each finite floating or complex tensor that both steps have, in the order of ``Step.named``.

    ``float32`` runs the case again. It is called only if an error is larger than the predicted rounding explains.
    """
    plain = _comparisons(prediction, amp, fp32, {}, u=u)
    if float32 is None or not any(tensor.is_doubtful for tensor in plain):
        return plain
    errors = float32()
    float32_noise = {tensor.name: errors.get(tensor.name, 0.0) for tensor in plain if tensor.is_doubtful}
    return _comparisons(prediction, amp, fp32, float32_noise, u=u)


def _comparisons(
    prediction: Prediction, amp: Step, fp32: Step, float32: Mapping[str, float], *, u: float
) -> list[Compared]:
    exact, reference = prediction.exact.named(), prediction.reference.named()
    actual, plain = amp.named(), fp32.named()
    factor = tolerance.CERTAIN if prediction.predicted is None else tolerance.EXCESS
    predicted = prediction.predicted.named() if prediction.predicted is not None else {}
    rows = []
    for name, value in actual.items():
        if name not in prediction.noise or name not in plain or name not in reference:
            continue  # a buffer that the forward pass registers in some steps only
        if not value.numel() or not is_inexact(exact[name]) or not value.isfinite().all():
            continue
        size, noise, float32_noise = prediction.sizes[name], prediction.noise[name], float32.get(name, 0.0)
        noise_unit = max(noise, tolerance.floor(value.numel(), u))
        # Both tensors of ``distance`` include the error of float32 itself; only one tensor of ``from_model`` does.
        distance = relative_error(value, reference[name], scale=size) - 2 * float32_noise
        from_model = relative_error(value, predicted[name], scale=size) - float32_noise if name in predicted else 0.0
        rows.append(
            Compared(
                name=name,
                elements=value.numel(),
                error=relative_error(value, exact[name], scale=size),
                noise=noise,
                plain=relative_error(value, plain[name], scale=size),
                distance=distance / noise_unit if distance > 0 else 0.0,
                allowed=tolerance.allowed(noise, value.numel(), u, factor) + float32_noise,
                factor=factor,
                equal=same(value, reference[name]),
                from_model=from_model / noise_unit if from_model > 0 else 0.0,
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
    """Return the median of ``distance`` over the tensors of a step."""
    return statistics.median(tensor.distance for tensor in compared) if compared else 0.0


#: Maximum number of draws, if the step has a nondeterministic reduction and a tensor has few elements (``tolerance``).
_MOST_DRAWS = 14


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
    """Return the tensors of ``bad`` whose excess persists when the step is run with other random values (draws).

    ``bad`` has the worst tensor first, and so does the result. ``measure`` is the excess of a tensor by default. A
    tensor is returned if the median of its measure over three draws exceeds ``limit``. If the measure of the worst
    tensor is not finite, all of ``bad`` is returned without more draws. ``step(seed, loss_scale)`` runs the case in
    mixed precision.

    ``any_order`` is whether the step has a nondeterministic reduction, such as one with atomics. Its errors vary more,
    so the root mean square over all draws is compared with ``limit``, and tensors with few elements are drawn more
    often.
    """
    scale = conditions.tolerance_scale
    if not bad or not math.isfinite(measure(bad[0])):
        return list(bad)
    further = _required_draws(bad) - 1 if any_order else FURTHER_DRAWS
    more_draws = redrawn(partial(_drawn, case, conditions, step), conditions.seed, further)
    draws = [{tensor.name: tensor for tensor in draw} for draw in (bad, *more_draws)]
    if any_order:
        return [tensor for tensor in bad if _combined_excess(tensor.name, draws, measure) > limit * scale]
    medians = {
        tensor.name: statistics.median(measure(draw[tensor.name]) if tensor.name in draw else 0.0 for draw in draws)
        for tensor in bad
    }
    return [tensor for tensor in bad if medians[tensor.name] > limit * scale]


def _required_draws(bad: Sequence[Compared]) -> int:
    """Return the number of draws that make an excess of EXCESS implausible by chance (see ``tolerance.spread``)."""
    fewest = max(min(tensor.elements for tensor in bad), 1)
    enough = math.ceil((tolerance.DEVIATIONS / math.log(tolerance.EXCESS)) ** 2 / fewest)
    return min(max(enough, 1 + FURTHER_DRAWS), _MOST_DRAWS)


def _combined_excess(name: str, draws: Sequence[Mapping[str, Compared]], measure: Callable[[Compared], float]) -> float:
    """Return the root mean square of the measured error over all draws, divided by that of the expected error.

    If the draws have so few elements that ``tolerance.spread`` exceeds EXCESS, the ratio is also divided by
    ``tolerance.spread`` / EXCESS.
    """
    tensors = [draw[name] for draw in draws if name in draw]
    expected = math.hypot(*(tensor.unit for tensor in tensors))
    measured = math.hypot(*(measure(tensor) * tensor.unit for tensor in tensors))
    spread_factor = tolerance.spread(sum(tensor.elements for tensor in tensors)) / tolerance.EXCESS
    return measured / expected / max(1.0, spread_factor) if expected else math.inf


def _drawn(case: Case, conditions: Conditions, step: Callable[[int, float], Step], seed: int) -> list[Compared]:
    """Run the case with the random values of another seed, and compare the step with its prediction."""
    realised = realise(case, conditions, seed=seed)
    fp32 = run_step(case, realised.on(conditions.device.torch_device), contextlib.nullcontext, seed=seed)
    prediction = predict(case, realised, conditions.device, conditions.precision, seed=seed)
    result = step(seed, prediction.loss_scale)
    float32 = partial(float32_errors, case, realised, fp32, prediction, replace(conditions, seed=seed))
    return compare(prediction, result, fp32, u=conditions.precision.u, float32=float32)
