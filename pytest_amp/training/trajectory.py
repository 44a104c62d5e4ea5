"""Run a short training and observe it: the loss, the gradients and the changed parameters of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeAlias

import torch

from pytest_amp.cases import Case, MakeOptimizer, made_of, map_tensors, seeded
from pytest_amp.devices import Device
from pytest_amp.failure import AmpFailure, AmpUsageError, is_usage_error
from pytest_amp.numerics.callers import definition_of
from pytest_amp.precision import Precision
from pytest_amp.scaler import Iteration, Train, UpdateRule, standard_step
from pytest_amp.scaler.reasons import likely_of_skips
from pytest_amp.scaler.refusal import refused
from pytest_amp.scaler.regions import noted_at_calls
from pytest_amp.scaler.unscaling import expect_unscaled
from pytest_amp.scaler.watched import WatchedScaler
from pytest_amp.text.table import as_table
from pytest_amp.training.noise import Noise
from pytest_amp.training.optimizer_observer import OptimizerObserver

__tracebackhide__ = is_usage_error

#: Initial scale, GradScaler's default, and the scale below which a run does not begin again if only some steps of an
#: iteration are skipped. The scaler decreases the scale until the gradients of the case are finite.
_SCALE, _LEAST_SCALE = 2.0**16, 2.0**-24
#: Distance of the seeds of two steps; more than the number of seeds from which a result is drawn.
_SEEDS_BETWEEN_STEPS = 1009
#: Number of consecutive skipped steps that is an error: the scale has then decreased from 2**16 to 2**-24.
_MOST_SKIPPED = 40


#: Iteration that a training step receives; the checks of a scaler pass the same class.
TrainingIteration: TypeAlias = Iteration
#: Training step: a function that receives an iteration and trains the model once.
TrainingStep: TypeAlias = Train


@dataclass(frozen=True)
class Setup:
    """Setup of a training: a case, the number of steps, the training step and the optimizer.

    With ``fresh``, each step calls the case's ``batch`` after seeding torch with a number derived from ``seed`` and the
    step; otherwise all steps use one batch. ``plain``, if it is set, replaces ``case`` in the float32 runs. With
    ``manual``, the reference runs use manual casts instead of float32.
    """

    case: Case
    device: Device
    precision: Precision
    _: KW_ONLY
    steps: int
    seed: int = 0
    train: TrainingStep = standard_step
    make_optimizer: MakeOptimizer
    fresh: bool = False
    plain: Case | None = None
    manual: bool = False

    @property
    def needs_scaler(self) -> bool:
        """Return whether gradients may leave the range of the dtype: true of fp16; bf16 has the range of float32."""
        return self.precision.name == "fp16"

    @property
    def reference(self) -> str:
        """Return the name of the reference run in failures."""
        return "manual casts" if self.manual else "float32"

    def case_of(self, *, low: bool) -> Case:
        """Return the case of a run in mixed precision (``low``) or in float32."""
        return self.case if low or self.plain is None else self.plain

    def seed_of(self, step: int) -> int:
        """Return the seed of the random numbers of ``step``: those of a redraw have no step in common with it."""
        return self.seed + _SEEDS_BETWEEN_STEPS * step

    def batch(self, step: int, first: Any, *, low: bool = True) -> Any:
        """Return the batch of ``step`` on the device: a new one with ``fresh``, otherwise ``first``."""
        if not self.fresh:
            return first
        with torch.random.fork_rng(devices=[]), seeded(1_000_003 * (self.seed + 1) + step):
            drawn = self.case_of(low=low).batch()
        return map_tensors(lambda x: x.to(self.device.torch_device), drawn)


@dataclass(frozen=True)
class TrajectoryStep:
    """Step of a training.

    Shares are of elements:

    - ``lost``: those that the step left unchanged, of the parameters' elements with a nonzero gradient
    - ``zero``: those that are exactly zero, of the gradients' elements
    - ``negligible``: those whose size is at most float32's unit roundoff times the root mean square of all gradients
      (so zeros, too), of the gradients' elements

    ``norm`` is the L2 norm of all gradients as the optimizer's own step receives them. If the optimizer is fused and
    divides by the scale itself, they are divided by it here. ``skipped`` is the number of previous attempts that the
    scaler skipped. ``alone`` is whether the optimizer's own step was called without the enabled scaler. ``loss_dtype``
    is the dtype of the last loss.
    """

    loss: float
    lost: float
    zero: float
    negligible: float
    norm: float
    skipped: int
    alone: bool
    loss_dtype: torch.dtype
    #: Gradients by parameter name, unscaled, as the optimizer's own step receives them; only in the first
    #: ``GRADIENT_STEPS`` steps.
    gradients: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass
class Trajectory:
    """Steps of a training, and its final state.

    ``kept`` is the dictionary in which the training step may keep objects of its own between steps.
    """

    steps: list[TrajectoryStep]
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    kept: dict[str, Any]
    #: Parameters whose gradient was added to one that the optimizer had already used, since it was not set to zero.
    stale: list[str] = field(default_factory=list)
    #: Second iteration; failures name its source lines.
    second: Iteration | None = None

    @property
    def losses(self) -> list[float]:
        """Return the loss of each step, before the update."""
        return [step.loss for step in self.steps]

    def __str__(self) -> str:
        """Return the steps as a table."""
        rows = [
            (
                str(index),
                f"{step.loss:.6g}",
                f"{step.norm:.4g}",
                f"{step.zero:.1%}",
                f"{step.lost:.1%}",
                str(step.skipped),
            )
            for index, step in enumerate(self.steps)
        ]
        return as_table(("step", "loss", "gradient norm", "zero", "rounded away", "skipped"), rows)


#: Function called after each step; it raises for a fault.
Inspect = Callable[[int, TrainingIteration], None]

#: Number of attempts of a step with the same random numbers. A scale of 65536 has then decreased below 1.
_ATTEMPTS_PER_DRAW = 20
#: Offset between the seeds of companions that draw their own random numbers; larger than the seed of any step.
_COMPANION_SEED_OFFSET = 10**9


def run(  # noqa: PLR0913  # arguments of one run
    setup: Setup,
    *,
    low: bool,
    companion: int | None = None,
    redraw: bool = False,
    inspect: Inspect | None = None,
    scale: float = _SCALE,
) -> Trajectory:
    """Train from the setup's seed, in mixed precision (``low``) or in float32.

    A ``companion`` is a float32 run perturbed by noise of the size of low-precision rounding (see ``training.noise``).
    Let d be ``PERTURBATION`` unit roundoffs of the low dtype. In each step each weight is multiplied by 1 + d e, where
    e is uniform in [-1, 1], and normal noise of the relative L2 size d is added to each gradient. The change that the
    step makes is then added to the unperturbed weights. (Noise on the weights alone is not enough: Adam's first update
    is the sign of the gradient, which is arbitrary for a gradient near zero.) With ``redraw`` the companion also draws
    other random numbers in each step than the float32 run.

    A step that the scaler skips is repeated from the buffers with which it began. Therefore the n-th step is the n-th
    update in each run, and a skipped attempt does not change the buffers that the forward pass updates and reads. If an
    iteration has several steps and only some are skipped, the others cannot be undone: the run begins again with a
    lower ``scale``.

    ``inspect`` is called after each step.
    """
    if setup.steps < 2:
        raise AmpUsageError(f"steps={setup.steps}; expected 2 or more")
    try:
        return _run(setup, scale, low=low, companion=companion, redraw=redraw, inspect=inspect)
    except _SkippedInPart as skipped:
        (iteration,) = skipped.args
        lower = min(scale / 4, iteration.scaler.get_scale())
    if lower < _LEAST_SCALE:
        raise AmpFailure(
            f"{setup.case.name}, step {iteration.index}: a part of the step is skipped at every scale tried",
            now=f"scale {iteration.scaler.get_scale():g} after the step, {scale:g} at the first",
            site=", ".join(dict.fromkeys(iteration.scaler.lines.get("step", []))) or None,
            likely="gradients of one optimizer are not finite in the low dtype, whatever the scale, or scaler.update "
            "is given a scale",
        )
    del iteration  # and its model, of which each run has its own
    return run(setup, low=low, companion=companion, redraw=redraw, inspect=inspect, scale=lower)


class _SkippedInPart(Exception):
    """Iteration, the argument, in which some steps were skipped and others taken, or which cannot be repeated."""


def _run(  # noqa: PLR0913  # arguments of one run
    setup: Setup, scale: float, *, low: bool, companion: int | None, redraw: bool, inspect: Inspect | None
) -> Trajectory:
    case = setup.case_of(low=low)
    realised = case.realise(seed=setup.seed).on(setup.device.torch_device)
    parameters = [p for p in realised.model.parameters() if p.requires_grad]
    if not parameters:
        raise AmpUsageError(f"case {setup.case.name}: the model has no parameter that requires a gradient")
    optimizer = made_of(parameters, setup.make_optimizer)
    if setup.needs_scaler:  # also checked in the float32 run, which is the first one
        expect_unscaled(setup.case.name, realised.model, optimizer, setup.device.torch_device)
    # Prevent growth of the scale, since it would cause skipped steps, which this check is not about.
    rule = UpdateRule(growth_interval=10**6)
    scaled = (low or setup.manual) and setup.needs_scaler
    scaler = WatchedScaler(setup.device.type, scale, rule, enabled=scaled)
    trajectory = Trajectory([], realised.model, optimizer, scaler, {})
    stepped = accumulates = False
    for index in range(setup.steps):
        iteration = TrainingIteration(
            realised.model, setup.batch(index, realised.batch, low=low), optimizer, scaler, index, case, setup.device,
            setup.precision, low=low, manual=setup.manual, kept=trajectory.kept,
        )  # fmt: skip
        noise = None if companion is None else Noise(setup.precision, parameters, step=index, companion=companion)
        with nullcontext() if noise is None else noise.on_weights():
            step = _run_step(setup, iteration, parameters, noise, redraw=redraw, accumulates=accumulates)
        trajectory.steps.append(step)
        trajectory.stale += iteration.stale if stepped else []
        trajectory.second = iteration if index == 1 else trajectory.second
        stepped |= iteration.stepped
        accumulates = scaler.is_enabled() and not scaler.called
        if inspect is not None:
            inspect(index, iteration)
    return trajectory


def _run_step(  # noqa: PLR0913  # arguments of one step
    setup: Setup,
    iteration: TrainingIteration,
    parameters: list[torch.nn.Parameter],
    noise: Noise | None,
    *,
    redraw: bool,
    accumulates: bool,
) -> TrajectoryStep:
    """Run the training step, and repeat it as long as the scaler skips it.

    If it ``accumulates`` gradients of previous steps, a skipped step loses them, so the run begins again.
    """
    offset = _COMPANION_SEED_OFFSET * (noise.companion + 1) if redraw and noise is not None else 0
    model = iteration.model
    may_skip = iteration.scaler.is_enabled()
    buffers = {name: value.detach().clone() for name, value in model.named_buffers()} if may_skip else {}
    for skipped in range(_MOST_SKIPPED):
        watch = OptimizerObserver(iteration, parameters, noise)
        iteration.scaler.begin()
        iteration.losses.clear()
        # Draw other random numbers after many attempts: if these gave NaN at any scale, a repetition would, too.
        draws = seeded(setup.seed_of(iteration.index) + 10**6 * (skipped // _ATTEMPTS_PER_DRAW) + offset)
        iteration.backwards.clear()
        with draws, watch.watching(), _refusals(iteration, watch), _noted_regions(iteration, noise):
            iteration.conclude(setup.train(iteration))
        iteration.backwards[:] = [call.without_root() for call in iteration.backwards]
        if not iteration.losses:
            raise AmpUsageError(
                f"the training step{_at(setup.train)} has no loss: it calls neither iteration.loss() nor "
                "backward() of a loss, and returns none; expected one of the three"
            )
        scaler = iteration.scaler
        if scaler.skips_in_part or (accumulates and scaler.found_inf and not scaler.moved):
            raise _SkippedInPart(iteration)
        if not scaler.is_enabled() or scaler.moved or not scaler.found_inf:
            loss = sum(iteration.losses) / len(iteration.losses)
            return TrajectoryStep(
                loss, watch.lost, watch.zero, watch.negligible, watch.norm, skipped, iteration.stepped_alone,
                iteration.loss_dtype, watch.gradients,
            )  # fmt: skip
        _restore(model, buffers)
    raise AmpFailure(
        f"{setup.case.name}, step {iteration.index}: skipped {_MOST_SKIPPED} times in a row",
        now=f"scale {iteration.scaler.get_scale()}, loss {iteration.losses[-1]}",
        likely=likely_of_skips(iteration),
    )


def _restore(model: torch.nn.Module, buffers: Mapping[str, torch.Tensor]) -> None:
    """Write the values of ``buffers`` into the buffers of the same name, shape and dtype."""
    for name, value in model.named_buffers():
        before = buffers.get(name)
        if before is not None and before.shape == value.shape and before.dtype == value.dtype:
            value.detach().copy_(before)


@contextmanager
def _noted_regions(iteration: TrainingIteration, noise: Noise | None) -> Iterator[None]:
    """Record, in the first step, the autocast dtypes at each call of torch, including calls inside modules.

    Compiled code runs in eager mode here, since its calls of torch would not be observed.
    """
    if iteration.index or noise is not None:
        yield
        return
    with torch.compiler.set_stance("force_eager"), noted_at_calls(iteration.device.type, iteration.operator_regions):
        yield


def _at(train: TrainingStep) -> str:
    line = definition_of(train)
    return f" at {line}" if line else ""


@contextmanager
def _refusals(iteration: TrainingIteration, watch: OptimizerObserver) -> Iterator[None]:
    """Convert an exception that the scaler or the optimizer raised to an AmpFailure with its text."""
    try:
        yield
    except (RuntimeError, AssertionError, ValueError) as error:
        if iteration.scaler.refused is not error:
            raise
        where = f"{iteration.case.name}, step {iteration.index}"
        raise refused(where, error, iteration, by_optimizer=watch.stepping) from error
