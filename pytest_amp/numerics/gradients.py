"""Check a case's outputs, gradients and buffers in mixed precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from pytest_amp.cases import Case, expect_python, named_buffers
from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.numerics import predicted as rounding
from pytest_amp.numerics import tolerance as limits
from pytest_amp.numerics.cancellation import float32_errors
from pytest_amp.numerics.case_run import CaseRun, likely_cause, other_names
from pytest_amp.numerics.chance import check_distance, check_dtypes_given, not_acquitted
from pytest_amp.numerics.compare import Compared, compare, confirmed, median_distance
from pytest_amp.numerics.conditioning import lost_share, names_of_group, why_lost
from pytest_amp.numerics.conditions import Conditions, runs_under
from pytest_amp.numerics.errors import exceeds, is_hollow, is_inexact, norm
from pytest_amp.numerics.manual_cast_comparison import check_reference, check_unreplayed, median_allowed
from pytest_amp.numerics.nonfinite import likely_origin, not_finite_in_float32
from pytest_amp.numerics.prediction import Prediction, predict
from pytest_amp.numerics.program import check_program
from pytest_amp.numerics.realised import realise, realise_and_run_float32
from pytest_amp.numerics.redraw import redrawn
from pytest_amp.numerics.spread import Errors, other_draws, over_seeds, worst_share
from pytest_amp.numerics.step import Step
from pytest_amp.precision import dtype_name
from pytest_amp.record import Observe

__tracebackhide__ = is_usage_error


def check_gradients(case: Case, conditions: Conditions, observe: Observe, *, tolerance: float | None = None) -> None:
    """Run ``case`` in mixed precision and compare everything that it computes with its prediction.

    See ``Amp.check_gradients`` for the comparison. Raises AmpFailure.
    """
    expect_python(case.realise(seed=conditions.seed).model, case=case.name)
    realised, fp32 = realise_and_run_float32(case, conditions)
    wrong = [name for name, value in fp32.named().items() if not value.isfinite().all()]
    if wrong:
        raise not_finite_in_float32(case, realised, conditions, wrong)
    with runs_under(case, conditions, also=", or in float64, which is its reference"):
        prediction = predict(case, realised, conditions.device, conditions.precision, seed=conditions.seed)
    run = CaseRun(case, realised, conditions, prediction, fp32, tolerance)
    further = other_draws(case, conditions, lambda seed: run.step_of(seed, prediction.loss_scale))
    amp = run.step()
    _check_buffers_exist(run, amp)
    _check_present(run, amp)
    _check_dtypes(run, amp)
    _check_finite(run, amp)
    if run.unreplayed is not None:
        observe(f"{case.name}/summary.not_replayed", run.unreplayed, kind="state")
        check_unreplayed(run, amp, run.unreplayed)
        return
    float32 = partial(float32_errors, case, realised, fp32, prediction, conditions)
    compared = compare(prediction, amp, fp32, u=conditions.precision.u, float32=float32)
    if _is_near_discontinuity(run, amp):
        observe(f"{case.name}/summary.redrawn", 1, kind="count", unit="draws")
        check_gradients(case, replace(conditions, seed=conditions.seed + 1), observe)
        return
    _observe(run, compared, further, observe)
    if tolerance is None:
        check_program(run, observe)
    _check_errors(run, compared)
    check_reference(run, amp, compared)
    _check_counts(run, amp)
    _check_hollow(run, amp)
    if tolerance is None and prediction.predicted is not None:
        check_dtypes_given(run, compared, observe)
        check_distance(run, compared)
        rounding.check_operators(case, conditions, run.operators, observe)


def _check_buffers_exist(run: CaseRun, amp: Step) -> None:
    """Check that a step has the same buffers as manual casts: a forward pass may register and delete buffers."""
    expected = run.prediction.reference.buffers
    differ = [name for name in {**expected, **amp.buffers} if (name in expected) != (name in amp.buffers)]
    if differ:
        words = {True: "exists", False: "does not exist"}
        raise AmpFailure(
            f"{run.describe(f'buffer.{differ[0]}')} {words[differ[0] in amp.buffers]}"
            f"{other_names([f'buffer.{name}' for name in differ])}",
            label_before="manual",
            before=f"with manual casts it {words[differ[0] in expected]}",
            now=run.conditions.now(words[differ[0] in amp.buffers]),
            likely="the forward pass registers or deletes it under a condition that autocast changes",
        )


def _check_present(run: CaseRun, amp: Step) -> None:
    """Check that every gradient of the float64 step exists in mixed precision, and is zero only if it is in float64."""
    exact, actual = run.prediction.exact.named(), amp.named()
    missing = [name for name in exact if name not in actual and not name.startswith("buffer.")]
    if missing:
        raise AmpFailure(
            f"{run.describe(missing[0])} is missing{other_names(missing)}",
            label_before="exact",
            before=f"it has norm {norm(exact[missing[0]]):.3g} in float64; an optimizer skips "
            "parameters without a gradient",
            now=run.conditions.now("None"),
            likely="a cast, a custom function or the autocast kernel of an operator detaches it from the graph",
        )
    lost = [
        name
        for name in actual
        # Leave out gradients with a noise near 1: those that manual casts lose, too, since they underflow as a whole.
        if not name.startswith(("output.", "buffer."))
        and run.prediction.noise.get(name, 1.0) < 1.0 - run.conditions.precision.u
        and actual[name].numel()
        and not actual[name].any()
        and not run.prediction.vanishes(name)
    ]
    if lost:
        raise AmpFailure(
            f"{run.describe(lost[0])} is zero{other_names(lost)}",
            label_before="exact",
            before=f"it has norm {norm(exact[lost[0]]):.3g} in float64",
            now=run.conditions.now("all zeros"),
            likely="the backward pass drops the gradient, or it underflows where it did not before",
        )


def _check_dtypes(run: CaseRun, amp: Step) -> None:
    """Check that gradients have their tensor's dtype, buffers keep their dtype, and outputs have the reference's.

    Buffers that the forward pass registers must have the reference's dtype.
    """
    parameters = dict(run.realised.model.named_parameters())
    buffers = {**run.prediction.reference.buffers, **named_buffers(run.realised.model)}
    expected = {name: (amp.gradients[name], parameters[name].dtype) for name in amp.gradients}
    expected |= {f"buffer.{name}": (value, buffers[name].dtype) for name, value in amp.buffers.items()}
    if run.prediction.same_device:
        reference = run.prediction.reference.outputs
        expected |= {f"output.{name}": (value, reference[name].dtype) for name, value in amp.outputs.items()}
    for name, (value, dtype) in expected.items():
        if value is not None and value.dtype != dtype and not _is_cast_table(run, name, value):
            raise AmpFailure(
                f"{run.describe(name)} has dtype {dtype_name(value.dtype)}, it should have {dtype_name(dtype)}",
                label_before="manual" if name.startswith("output.") else "before",
                before=dtype_name(dtype),
                now=run.conditions.now(dtype_name(value.dtype)),
                likely="an operator before it no longer follows its rule, or a buffer is replaced instead of updated",
            )


def _is_cast_table(run: CaseRun, name: str, value: torch.Tensor) -> bool:
    """Return whether ``value`` is a buffer that the model itself casts (with manual casts, too) but never updates.

    Models cast position tables to the dtype of activations in this way. In contrast, a statistic changes in each step.
    """
    path = name.removeprefix("buffer.")
    initial = named_buffers(run.realised.model).get(path) if name.startswith("buffer.") else None
    reference = run.prediction.reference.buffers.get(path)
    if initial is None or reference is None or reference.dtype != value.dtype or initial.shape != value.shape:
        return False
    return torch.equal(initial.to(value.dtype).to(value.device), value)


def _check_finite(run: CaseRun, amp: Step) -> None:
    """Check that every tensor that is finite with manual casts is finite in mixed precision."""
    named = amp.named()
    bad = [name for name in named if not named[name].isfinite().all()]
    if bad:
        count = int((~named[bad[0]].isfinite()).sum())
        raise AmpFailure(
            f"{run.describe(bad[0])} is not finite{other_names(bad)}",
            label_before="manual",
            before="finite with manual casts, at the same loss scale",
            now=run.conditions.now(f"{count} of {named[bad[0]].numel()} elements are not"),
            likely=likely_origin(run.case, run.realised, run.conditions, run.prediction.loss_scale)
            or likely_cause(run),
        )


def _observe(run: CaseRun, compared: Sequence[Compared], further: Sequence[Errors], observe: Observe) -> None:
    case, summary, u = run.case.name, f"{run.case.name}/summary", run.conditions.precision.u
    error, ratio = partial(observe, kind="error", unit="relative L2"), partial(observe, kind="ratio")
    exact = run.prediction.exact.gradients
    without = [name for name, p in run.realised.model.named_parameters() if p.requires_grad and exact.get(name) is None]
    if without:
        observe(f"{summary}.without_gradient", len(without), kind="count", unit="parameters")
    for tensor in compared:
        again = over_seeds(errors.get(tensor.name) for errors, _ in further)
        error(f"{case}/{tensor.name}", tensor.error, allowed=run.allowed(tensor), over_seeds=again)
        if tensor.name == "output.loss":  # |L_amp - L|, in units of u |L|
            ratio(f"{summary}.loss", tensor.error / u, unit="u |L|", allowed=run.allowed(tensor) / u)
    # Observe shares of the allowed errors: another run may have another worst tensor, with another allowed error.
    scale = run.conditions.tolerance_scale
    allowed = {tensor.name: run.allowed_plain(tensor) / scale for tensor in compared}
    share = worst_share({tensor.name: tensor.plain for tensor in compared}, allowed)
    shares = [worst_share(plain, allowed) for _, plain in further]
    error(f"{summary}.fp32", share, unit="of what is allowed", allowed=scale, over_seeds=over_seeds(shares))
    largest_excess = max(tensor.excess for tensor in compared)
    equal = sum(tensor.equal for tensor in compared) / len(compared)
    ratio(f"{summary}.excess", largest_excess, unit="noise", allowed=compared[0].factor)
    ratio(f"{summary}.distance", median_distance(compared), unit="noise", allowed=median_allowed(run, compared))
    ratio(f"{summary}.equal", equal, unit="share of tensors")


def _largest_noise(prediction: Prediction) -> tuple[float, str]:
    """Return the larger relative noise of all outputs together and of all gradients together, and the group's name."""
    exact = {name: norm(value) for name, value in prediction.exact.named().items()}
    shares = []
    for group in ("outputs", "gradients"):
        names = names_of_group(prediction, group)
        whole = sum(exact[name] ** 2 for name in names) ** 0.5
        noise = sum((prediction.noise[name] * exact[name]) ** 2 for name in names) ** 0.5
        shares.append((noise / whole if whole else 0.0, group))
    return max(shares)


def _is_near_discontinuity(run: CaseRun, amp: Step) -> bool:
    """Return whether the case is near a discontinuity with this seed only.

    At a discontinuity of the gradient (a hinge, the border between two pixels) rounding may change a whole gradient,
    and no tolerance can be derived from the noise. If the case is near one with this seed only, the next seed is
    checked instead. Raises AmpFailure if it is near one with the next seeds, too.
    """
    if run.tolerance is not None:
        return False
    case, conditions, limit = run.case, run.conditions, limits.MOST_NOISE * run.conditions.tolerance_scale
    share, group = _largest_noise(run.prediction)
    if share <= limit:
        return False

    def draw(seed: int) -> Prediction:
        realised = realise(case, conditions, seed=seed)
        return predict(case, realised, conditions.device, conditions.precision, seed=seed)

    if all(_largest_noise(prediction)[0] <= limit for prediction in redrawn(draw, conditions.seed)):
        return True
    now, likely = why_lost(run, group, share)
    real = lost_share(amp, run.prediction.exact, names_of_group(run.prediction, group))
    lose = "lose" if run.prediction.predicted is None else "loses"
    raise AmpFailure(
        f"{case.name}: {run.prediction.whose} {lose} {share:.0%} of the {group} under {conditions}",
        label_before="exact",
        before=f"relative L2 distance from float64; up to {limits.MOST_NOISE:.0%} counts as rounding. "
        f"Measured: {real:.0%}",
        now=conditions.now(now),
        likely=run.unseeded() or likely,
    )


def _check_errors(run: CaseRun, compared: Sequence[Compared]) -> None:
    """Check that the errors of every tensor, relative to float64 and to float32, are within the bounds of its noise."""
    bad = sorted((tensor for tensor in compared if exceeds(tensor.error, run.allowed(tensor))), key=_by_excess)
    if bad and run.tolerance is None and run.prediction.predicted is not None:
        bad = not_acquitted(run, bad)
        any_order = bool(bad) and run.adds_in_any_order
        bad = confirmed(bad, run.case, run.conditions, run.step_of, limit=limits.EXCESS, any_order=any_order)
    if bad:
        worst = bad[0]
        why = (
            f"the noise of {run.prediction.whose} is {worst.noise:.3g}"
            if run.tolerance is None
            else "the given tolerance"
        )
        raise AmpFailure(
            f"{run.describe(worst.name)} has an error of {worst.error:.3g}, more than the allowed "
            f"{run.allowed(worst):.3g}"
            f"{other_names([tensor.name for tensor in bad])}",
            label_before="exact",
            before=f"relative L2 distance from float64; {why}",
            now=run.conditions.now(f"{worst.error:.3g}"),
            likely=_cause_in_tolerance(run, worst) or likely_cause(run),
        )
    plain = sorted((tensor for tensor in compared if exceeds(tensor.plain, run.allowed_plain(tensor))), key=_by_excess)
    if plain and not rounding.rounds_by_itself(run.case, run.realised, run.conditions):
        raise AmpFailure(
            f"{run.describe(plain[0].name)} differs from float32 by {plain[0].plain:.3g}, more than the allowed "
            f"{run.allowed_plain(plain[0]):.3g}{other_names([tensor.name for tensor in plain])}",
            label_before="fp32",
            before=f"E(amp, fp32); E(amp, float64) is {plain[0].error:.3g}",
            now=run.conditions.now(f"{plain[0].plain:.3g}"),
            likely="float32 itself is far from float64: TF32, or a broken float32 kernel",
        )


def _cause_in_tolerance(run: CaseRun, worst: Compared) -> str | None:
    """Return the cause if the ``tolerance`` argument is smaller than the error that rounding explains, else None."""
    if run.tolerance is None or worst.error > worst.allowed * run.conditions.tolerance_scale:
        return None
    return f"the tolerance: the predicted rounding alone is {worst.noise:.3g}, and explains {worst.allowed:.3g}"


def _by_excess(tensor: Compared) -> float:
    return -tensor.excess


def _check_counts(run: CaseRun, amp: Step) -> None:
    """Check that integer and boolean buffers equal the float64 step's, or the reference's if that step has none."""
    exact = {**run.prediction.reference.buffers, **run.prediction.exact.buffers}
    for name, value in amp.buffers.items():
        if not is_inexact(value) and not torch.equal(value.cpu(), exact[name].cpu()):
            raise AmpFailure(
                f"{run.describe(f'buffer.{name}')} is {value.flatten()[:4].tolist()}, without autocast it is "
                f"{exact[name].flatten()[:4].tolist()}",
                now=run.conditions.now("the count differs"),
            )


def _check_hollow(run: CaseRun, amp: Step) -> None:
    """Check that no float32 tensor has low-precision values only, unless its prediction has such values, too.

    A tensor whose exact value is zero up to cancellation error is left out: the result of terms that cancel has few
    bits.
    """
    dtype, predicted = run.conditions.precision.dtype, run.prediction.predicted if run.tolerance is None else None
    model = (predicted or run.prediction.exact).as_left()
    for name, value in amp.as_left().items():
        if name not in model or not (predicted or name.startswith("buffer.")):
            continue
        is_float32 = value.dtype in (torch.float32, torch.complex64)
        if is_float32 and is_hollow(value, dtype) and is_hollow(model[name].to(value.dtype), dtype) is False:
            if name in run.prediction.sizes and run.prediction.vanishes(name):
                continue
            raise AmpFailure(
                f"{run.describe(name)} is {dtype_name(value.dtype)}, but {dtype_name(dtype)} represents all its values",
                label_before="exact" if predicted is None else "predicted",
                before="values that the low dtype cannot represent",
                now=run.conditions.now("it was rounded to the low dtype"),
                likely="it is computed or stored in the low dtype, and then cast",
            )
