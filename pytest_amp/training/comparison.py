"""Check of a mixed-precision training against the same one in float32: ``Amp.check_training``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pytest_amp.account import receive
from pytest_amp.failure import AmpFailure, is_usage_error
from pytest_amp.numerics.draws import Draws
from pytest_amp.numerics.redraw import redrawn
from pytest_amp.precision import dtype_name
from pytest_amp.record import Observe
from pytest_amp.scaler.calls import check_calls, check_stale
from pytest_amp.scaler.regions import check_region
from pytest_amp.training.band import (
    Band,
    cast_companions_of,
    companions_of,
    converged_loss,
    further_companions_of,
    make_band,
    redrawn_band,
    widened,
)
from pytest_amp.training.constants import Constants, frozen_tensors
from pytest_amp.training.draws import recorded_draws
from pytest_amp.training.gradients import Doubtful, check_gradients
from pytest_amp.training.reasons import first_of, likely_first_loss, likely_forward, likely_overflow, likely_sizes
from pytest_amp.training.replaced import Replaced
from pytest_amp.training.rounding import rounded_step
from pytest_amp.training.state import Rounded, UpdatedModules, rounded_kept, rounded_parameters, rounded_state
from pytest_amp.training.trajectory import Setup, TrainingIteration, Trajectory, run
from pytest_amp.training.written import writer_of

__tracebackhide__ = is_usage_error

#: Additional share of parameters that a step in mixed precision may leave unchanged, compared with float32. Both have
#: float32 weights, on which small updates are lost equally often; weights in bf16 lose a third and more.
_MORE_LOST = 0.1
#: Additional share of gradients that may be exactly zero: with a scaler, fp16 flushes fewer.
_MORE_ZERO = 0.1
#: Step from which the optimizer's state has values of its own, instead of a gradient from a low-precision product.
_OWN_VALUES = 2
#: Minimum change of the float32 loss, in half widths, for the band to resolve anything.
_VISIBLE = 4.0


class TooLittleSeen(AmpFailure):
    """Failure of a float32 training whose loss moves too little: by ``moved`` in place of ``needed``."""

    def __init__(self, setup: Setup, band: Band) -> None:
        """Report the band and the losses in it."""
        first, step = band.losses[0], band.most_visible
        self.needed, self.moved = _VISIBLE * band.half[step], abs(band.losses[step] - first)
        super().__init__(
            f"{setup.case.name}: {setup.steps} steps in float32 move the loss too little to see anything by",
            label_before="rule",
            before=f"by {_VISIBLE:.0f} times half of the band's width at least, at step {step} {band.half[step]:.3g}",
            now=f"loss {first:.6g} at first, {band.losses[step]:.6g} at step {step}",
            likely="too few steps, too low a learning rate, a loss that cannot fall (random targets, fresh batches), "
            "or one that jumps from step to step: more steps, or a larger batch",
        )


def check_training(
    setup: Setup, observe: Observe, *, tolerance_scale: float = 1.0, note: Callable[[str], None] | None = None
) -> tuple[Trajectory, Band]:
    """Compare both runs step by step. Raises AmpFailure; see ``Amp.check_training``.

    A loss that leaves the band, or gradients that are zero or far from float32's, fail if they do so in two of three
    draws: those of the setup's seed and of the next two. ``note`` is called if only the first draw fails.
    """
    observed = _Observed()
    try:
        return _drawn(setup, observed.observe, tolerance_scale=tolerance_scale, note=note)
    except Doubtful as first:
        again = _drawn_again(setup, tolerance_scale=tolerance_scale)
        if again is None:
            raise
        receive(first)
        result, observed = again
        if note is not None:
            note(f"{first.what}, with seed {setup.seed} and not with the next two, by which it is judged")
        return result
    finally:
        observed.hand_to(observe)


@dataclass
class _Observed:
    """Observations of one draw, kept until it is known which draw counts."""

    facts: list[tuple[str, Any, Mapping[str, Any]]] = field(default_factory=list)

    def observe(self, name: str, value: Any, **facts: Any) -> None:
        """Keep an observation."""
        self.facts.append((name, value, facts))

    def hand_to(self, observe: Observe) -> None:
        """Observe everything that was kept."""
        for name, value, facts in self.facts:
            observe(name, value, **facts)


def _drawn_again(setup: Setup, *, tolerance_scale: float) -> tuple[tuple[Trajectory, Band], _Observed] | None:
    """Return the run of the next seed with its observations if the next two seeds pass, None if either fails."""

    def draw(seed: int) -> tuple[tuple[Trajectory, Band], _Observed]:
        observed = _Observed()
        return _drawn(replace(setup, seed=seed), observed.observe, tolerance_scale=tolerance_scale), observed

    try:
        result, *_ = redrawn(draw, setup.seed)
    except AmpFailure as failure:
        receive(failure)
        return None
    return result


def _drawn(
    setup: Setup, observe: Observe, *, tolerance_scale: float, note: Callable[[str], None] | None = None
) -> tuple[Trajectory, Band]:
    draws = recorded_draws(setup)
    with draws.scope():
        return _check(setup, observe, draws, tolerance_scale=tolerance_scale, note=note)


def _check(
    setup: Setup, observe: Observe, draws: Draws, *, tolerance_scale: float, note: Callable[[str], None] | None
) -> tuple[Trajectory, Band]:
    with draws.replaying():
        plain = run(setup, low=False, inspect=_keeps_float32(setup, setup.reference))
        unrecorded = draws.unknown[:1]  # before the companions, whose noise is drawn as well
        companions = [] if unrecorded else companions_of(setup)
    if unrecorded:
        companions = companions_of(setup, redraw=True)
        if note is not None:
            note(
                f"{setup.case.name}: what {unrecorded[0]} draws depends on values, and {setup.reference} draws other "
                f"numbers than {setup.precision.name}: the band is that of runs which all draw different ones"
            )
    disturbed = [companion.losses for companion in companions]
    band = make_band(plain.losses, disturbed, u=setup.precision.u, scale=tolerance_scale)
    if not all(_finite(loss) for loss in plain.losses):
        raise AmpFailure(
            f"{setup.case.name}: the training does not stay finite in float32",
            now=f"losses {[round(loss, 4) for loss in plain.losses[-4:]]} at its end",
            likely="there is nothing to compare mixed precision with; the learning rate is too high, or "
            + likely_overflow(setup, first_of(plain.losses), low=False),
        )
    low_run = run(setup, low=True, inspect=_keeps_float32(setup, setup.precision.name))
    name = setup.case.name
    _check_steps(setup, plain, low_run, companions, draws, redrawn=bool(unrecorded))
    left = band.leaves(low_run.losses)
    # The first loss is that of equal weights: only later ones may be rounding that training has amplified.
    if left and _finite(low_run.losses[left]) and band.visible >= _VISIBLE:
        band = _wider(setup, band, disturbed, draws, scale=tolerance_scale, redrawn=bool(unrecorded))
        left = band.leaves(low_run.losses)
    if band.visible < _VISIBLE:
        check_gradients(setup, plain, low_run, companions, draws)
        raise TooLittleSeen(setup, band)
    margin = band.margin(low_run.losses)
    if _finite(margin):
        observe(f"{name}/loss beside fp32", margin, kind="ratio", allowed=1.0)
    observe(f"{name}/steps skipped", sum(step.skipped for step in low_run.steps), kind="count")
    if left is not None:
        raise (Doubtful if _finite(low_run.losses[left]) else AmpFailure)(
            f"{name}: the loss leaves the band of float32 at step {left} of 0 to {setup.steps - 1}",
            label_before="fp32",
            before=f"{band.losses[left]:.6g} within {band.half[left]:.3g} ({band.width_in_words(left)})",
            now=f"{low_run.losses[left]:.6g} in {setup.precision.name}, "
            f"{abs(low_run.losses[left] - band.losses[left]) / band.half[left]:.1f} times as far as allowed",
            likely=_likely(setup, plain, low_run, left, allowed=band.half[left], draws=draws),
        )
    check_gradients(setup, plain, low_run, companions, draws)
    return low_run, band


def _wider(  # noqa: PLR0913  # what makes a band
    setup: Setup, band: Band, companions: list[list[float]], draws: Draws, *, scale: float, redrawn: bool
) -> Band:
    """Return ``band``, with what decides chance besides the rounding of weights and gradients."""
    if redrawn:
        further = [companion.losses for companion in further_companions_of(setup)]
        return redrawn_band(list(band.losses), [*companions, *further], u=setup.precision.u, scale=scale)
    with draws.replaying():
        cast = [companion.losses for companion in cast_companions_of(setup)]
    return widened(band, cast, u=setup.precision.u, scale=scale) if cast else band


def _finite(value: float) -> bool:
    return abs(value) < float("inf")


#: Tensors that may be low-precision: the model's, the optimizer's state, and those a step keeps; with likely causes.
_HELD = ("a parameter or buffer", "the optimizer's state", "what the step keeps")
_LIKELY = (
    "the model is cast (model.half(), model.bfloat16()), or low-precision values are loaded or written into it",
    "the optimizer was created from low-precision parameters, or its state was cast to or loaded in a low dtype",
    "iteration.kept holds an average or a sum in a low dtype, in which small updates round away: keep it in float32",
)


def _keeps_float32(setup: Setup, run_in: str) -> Callable[[int, TrainingIteration], None]:
    constants, replaced, stepped = Constants(setup), Replaced(setup), list[int]()
    modules = UpdatedModules()

    def inspect(index: int, iteration: TrainingIteration) -> None:
        if index == 0:
            stepped.clear()  # a run may begin again at a lower scale
            _expect_region(setup, iteration)
        if iteration.low and setup.needs_scaler and (iteration.stepped_alone or iteration.scaled_before_update):
            check_calls(setup.case.name, setup.train, iteration)
        if (iteration.stale and stepped) or iteration.stale_within:
            check_stale(setup.case.name, setup.train, iteration)
        stepped.extend([index] * iteration.stepped)
        frozen = frozen_tensors(iteration.model)
        parameters = [
            entry
            for entry in rounded_parameters(iteration.model)
            if entry.name not in frozen
            or not (constants.has(entry.name, iteration) or replaced.has(entry.name, iteration))
        ]
        state = rounded_state(iteration.model, iteration.optimizer, hollow=index >= _OWN_VALUES)
        # In the float32 run only a cast of the step's own makes a tensor low-precision.
        rounded = []
        if not iteration.low and not iteration.manual:
            rounded = [*rounded_kept(iteration.kept), *modules.rounded(iteration.kept, iteration.model)]
        for tensors, what, likely in zip((parameters, state, rounded), _HELD, _LIKELY, strict=True):
            if tensors:
                more = f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
                is_held = what == _HELD[0]
                line = writer_of(setup, index, tensors[0].name, low=iteration.low) if is_held else None
                raise AmpFailure(
                    f"{setup.case.name}, step {index} of the run in {run_in}: {what} is not in float32",
                    label_before="rule",
                    before="what is updated, and optimizer state, are in float32: small updates round away in less",
                    now=", ".join(str(tensor) for tensor in tensors[:3]) + more,
                    site=line,
                    likely=likely if line is None else f"{line} {_written(tensors[0])}",
                )

    return inspect


def _written(tensor: Rounded) -> str:
    """Return what a line does to a tensor, and how to mend it."""
    low = dtype_name(tensor.dtype)
    if not tensor.hollow:
        return f"casts {tensor.name} to {low}: keep what is trained in float32"
    return (
        f"writes values that were rounded to {low} into {tensor.name} (a checkpoint in {low} that is loaded, or an "
        f"update that is computed in {low}): save and compute them in float32"
    )


def _expect_region(setup: Setup, iteration: TrainingIteration) -> None:
    """Check that autocast is on in the test's dtype, or within the model, and off in the float32 run."""
    if iteration.low:
        check_region(iteration, again=lambda: run(replace(setup, steps=2), low=True))
    entered = dict.fromkeys(iteration.regions) | iteration.operator_regions
    if not iteration.low and entered and not iteration.manual:
        dtypes = ", ".join(sorted(map(dtype_name, entered)))
        lines = [line for line in (*entered.values(), *iteration.call_lines) if line]
        raise AmpFailure(
            f"{setup.case.name}: the run in float32 is under autocast({dtypes}), and there is nothing to compare with",
            label_before="rule",
            before="with iteration.autocast(), which is off in the run in float32",
            now=f"operators run in a region of autocast({dtypes}) that the check cannot disable",
            site=lines[0] if lines else None,
            likely="the model, its loss or the training step opens its own region: leave that to the caller",
        )


def _check_steps(  # noqa: PLR0913  # the runs that are compared
    setup: Setup,
    plain: Trajectory,
    low_run: Trajectory,
    companions: Sequence[Trajectory],
    draws: Draws,
    *,
    redrawn: bool,
) -> None:
    """Raise AmpFailure for a fault of a step that does not depend on its loss.

    As many gradients may be zero as are negligible in ``plain`` or in a companion: rounding alone may switch a
    saturated layer off; or as many as the dtype flushes in the same step with manual casts. Where both trainings have
    converged, their gradients are not compared. Companions with ``redrawn`` random numbers may also lose more updates
    than ``plain``.
    """
    converged = converged_loss(plain.losses, u=setup.precision.u)
    for index, (float32, low) in enumerate(zip(plain.steps, low_run.steps, strict=True)):
        where = f"{setup.case.name}, step {index}"
        steps = [float32, *(companion.steps[index] for companion in companions)]
        zero = max(max(step.zero, step.negligible) for step in steps)
        lost = max(step.lost for step in (steps if redrawn else [float32]))
        compared = max(abs(float32.loss), abs(low.loss)) >= converged
        if compared and low.zero > zero + _MORE_ZERO:
            rounded = rounded_step(setup, index, dict(plain.model.named_parameters()), draws)
            zero = zero if rounded is None else max(zero, rounded.flushed)
        if compared and low.zero > zero + _MORE_ZERO:
            raise Doubtful(
                f"{where}: {low.zero:.0%} of the gradients are exactly zero",
                label_before="fp32",
                before=f"{zero:.0%}, with those too small to matter beside the others, or for the dtype",
                now=f"{low.zero:.0%} in {setup.precision.name}",
                likely=_of_first(setup, plain, low_run, index)
                or f"they are below {setup.precision.name}'s smallest number: the loss is not scaled, or is "
                "divided or averaged in the low dtype",
            )
        if low.lost > lost + _MORE_LOST:
            raise AmpFailure(
                f"{where}: {low.lost:.0%} of the updates round away: the step leaves these parameters as they were",
                label_before="fp32",
                before=f"{lost:.0%}",
                now=f"{low.lost:.0%} in {setup.precision.name}",
                likely=likely_sizes(setup, float32, low, low_run.scaler.get_scale())
                or "the weights, or what is added to them, are in a low dtype",
            )


def _of_first(setup: Setup, plain: Trajectory, low_run: Trajectory, index: int) -> str | None:
    """Return the cause that the first step's gradients show; later ones depend on the model that they have changed."""
    return likely_sizes(setup, plain.steps[0], low_run.steps[0], low_run.scaler.get_scale()) if index else None


def _stale(low_run: Trajectory) -> str | None:
    """Return a message if gradients are added to those of the previous step; None otherwise."""
    if not low_run.stale:
        return None
    return (
        f"the gradients of {low_run.stale[0]} are added to those of the step before: optimizer.zero_grad() is missing"
    )


def _likely(  # noqa: PLR0913  # the runs that are compared
    setup: Setup, plain: Trajectory, low_run: Trajectory, left: int, *, allowed: float, draws: Draws
) -> str:
    """Return the likely cause, from the steps up to ``left``, whose loss may deviate by ``allowed``."""
    if not _finite(low_run.losses[left]):
        return likely_overflow(setup, left)
    if left == 0:
        return likely_first_loss(setup)
    sizes = _stale(low_run) or likely_sizes(setup, plain.steps[0], low_run.steps[0], low_run.scaler.get_scale())
    if sizes is not None:
        return sizes
    low = [step.loss_dtype for step in low_run.steps if step.loss_dtype in (torch.float16, torch.bfloat16)]
    if low:
        name = dtype_name(low[0])
        return f"the loss is {name}: reduced or divided in the low dtype inside the region"
    if not setup.needs_scaler or low_run.scaler.get_scale() != 1.0:
        float32, low_share = (
            sum(step.zero for step in trajectory.steps[:left]) / left for trajectory in (plain, low_run)
        )
        if low_share > float32 + 0.01:
            return f"gradients that are zero and should not be: {low_share:.1%}, {float32:.1%} in float32"
    return likely_forward(setup, left, draws, allowed=allowed) or (
        "gradients are not those of float32: not unscaled before they are read or clipped, accumulated or "
        "averaged in the low dtype, or an operator that needs float32 runs in a low dtype"
    )
