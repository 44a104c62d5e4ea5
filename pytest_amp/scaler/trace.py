"""Traces of training steps with a watched scaler: the results of its checks and steps in each iteration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch

from pytest_amp.cases import Case, MakeOptimizer, Realised, in_one_line, made_of, seeded
from pytest_amp.child_process.poison import is_sticky
from pytest_amp.devices import Device
from pytest_amp.failure import AmpFailure, AmpUsageError, is_usage_error
from pytest_amp.numerics.errors import exact_copy
from pytest_amp.precision import Precision
from pytest_amp.scaler.accumulation import watch_accumulation
from pytest_amp.scaler.iteration import Iteration, Train, plain_sgd, standard_step, watched_calls
from pytest_amp.scaler.planting import plant_in_a_gradient, plant_in_an_activation
from pytest_amp.scaler.reference import UpdateRule
from pytest_amp.scaler.regions import noted_in_backward
from pytest_amp.scaler.stepping import SteppedOptimizers, watched_steps
from pytest_amp.scaler.unscaling import expect_unscaled
from pytest_amp.scaler.watched import ScalerTrace, TraceStep, WatchedScaler, parameters_of

__tracebackhide__ = is_usage_error


class RefusedOverflow(Exception):
    """End of a training step at an inf that was planted in its forward pass: it raises, or leaves its batch out."""

    def __init__(self, iteration: Iteration, error: Exception | None = None) -> None:
        """Keep the iteration's place; ``error`` is the exception of the step, None if it returns."""
        super().__init__("it returns before backward" if error is None else in_one_line(error))
        self.what = "leaves out the batch" if error is None else "raises"
        self.place = f"{iteration.index} ({iteration.planted_in})"


@dataclass(frozen=True)
class Training:
    """Case, with the user's training step and optimizer, and the iterations in which overflow is planted.

    ``overflow_gradients_at`` are the iterations in which an inf is planted in a gradient, when it is accumulated, and
    ``overflow_activations_at`` those in which one is planted in the first module output in the low dtype, as by an
    overflow of a product. If ``low`` is False, the regions are disabled, but the scaler is enabled. Of several
    optimizers, that with the number ``target``, in the order of their first steps, gets the overflow of gradients; if
    it is None, that of ``make_optimizer``.
    """

    case: Case
    device: Device
    precision: Precision
    _: KW_ONLY
    seed: int = 0
    train: Train = standard_step
    make_optimizer: MakeOptimizer = plain_sgd
    overflow_gradients_at: Collection[int] = ()
    overflow_activations_at: Collection[int] = ()
    low: bool = True
    target: int | None = None

    def iterations(
        self, steps: int, scale: float, rule: UpdateRule, begun: Callable[[Iteration], object] = lambda _: None
    ) -> Iterator[tuple[Iteration, TraceStep]]:
        """Run ``steps`` iterations on a fresh model; yield each with its trace, right after it ran.

        ``begun`` is called with each iteration before it runs.
        """
        realised: Realised = self.case.realise(seed=self.seed).on(self.device.torch_device)
        parameters = [p for p in realised.model.parameters() if p.requires_grad]
        if not parameters:
            raise AmpUsageError(f"case {self.case.name}: the model has no parameter that requires a gradient")
        narrow = [name for name, p in realised.model.named_parameters() if p.requires_grad and p.dtype == torch.float16]
        if narrow:
            raise AmpUsageError(
                f"case {self.case.name}: {narrow[0]} is float16, and no scaler unscales such gradients; "
                "expected float32, which autocast casts"
            )
        optimizer = made_of(parameters, self.make_optimizer)
        expect_unscaled(self.case.name, realised.model, optimizer, self.device.torch_device)
        scaler, retained = WatchedScaler(self.device.type, scale, rule), dict[str, Any]()
        known = SteppedOptimizers()
        for index in range(steps):
            iteration = Iteration(
                realised.model, realised.batch, optimizer, scaler, index, self.case, self.device, self.precision,
                low=self.low, kept=retained,
            )  # fmt: skip
            begun(iteration)
            scaler.begin()
            saved = scaler.state_dict()
            before, iteration.tracker_before = saved["scale"], saved["_growth_tracker"]
            with ExitStack() as hooks:
                hooks.enter_context(seeded(self.seed + index))
                hooks.enter_context(watched_steps(iteration, _seeing(iteration)))
                hooks.enter_context(watched_calls(iteration))
                watch_backward(iteration, hooks)
                if index in self.overflow_gradients_at:
                    iteration.targets = known.target(optimizer, self.target)
                    plant_in_a_gradient(iteration, hooks)
                if index in self.overflow_activations_at:
                    plant_in_an_activation(iteration, hooks)
                self._step(iteration)
            known.note(scaler)
            yield iteration, scaler.traced(before)

    def _step(self, iteration: Iteration) -> None:
        """Run the training step. Raises RefusedOverflow or AmpFailure if a planted overflow ends it."""
        try:
            self.train(iteration)
        except AmpUsageError:
            raise
        except Exception as error:  # a project's own code may raise anything
            if not iteration.planted or iteration.scaler.refused is error or is_sticky(error):
                raise
            if iteration.index in self.overflow_activations_at:
                raise RefusedOverflow(iteration, error) from error
            raise AmpFailure(
                f"{self.case.name}, iteration {iteration.index}: the training step raises at an inf in a gradient",
                label_before="rule",
                before="scaler.step skips a step with an inf or NaN among its gradients, and training goes on",
                now=in_one_line(error),
                likely="gradients are checked or clipped with error_if_nonfinite=True, or anomalies are detected",
            ) from error
        if iteration.index in self.overflow_activations_at and iteration.planted and iteration.is_left_out:
            raise RefusedOverflow(iteration)


def trace_callable(
    work: Callable[[torch.amp.GradScaler], object], device: Device, *, steps: int, scale: float, rule: UpdateRule
) -> tuple[TraceStep, ...]:
    """Call ``work`` ``steps`` times with one scaler: each call is one iteration."""
    scaler = WatchedScaler(device.type, scale, rule)
    traced = []
    for _ in range(steps):
        scaler.begin()
        before = scaler.get_scale()
        work(scaler)
        traced.append(scaler.traced(before))
    return ScalerTrace(traced)


def _seeing(iteration: Iteration) -> Callable[[torch.optim.Optimizer], None]:
    """Return a function to call before each ``optimizer.step``, which notes the gradients it receives, and the caller.

    A fused optimizer receives scaled gradients, and the scale as ``grad_scale``.
    """

    def hook(optimizer: torch.optim.Optimizer) -> None:
        iteration.note_step(optimizer)
        scale = getattr(optimizer, "grad_scale", None)
        gradients = [p.grad for p in parameters_of(optimizer) if p.grad is not None]
        iteration.gradients_by_step.append([exact_copy(g / scale if scale is not None else g) for g in gradients])

    return hook


def watch_backward(iteration: Iteration, hooks: ExitStack) -> None:
    """Watch the first iteration for backward in a region, and the second for gradients added to old ones.

    The hooks are installed in one iteration only, because they take time.
    """
    if iteration.index == 0:
        trained = [parameter for parameter in iteration.model.parameters() if parameter.requires_grad]
        hooks.enter_context(noted_in_backward(iteration.device.type, trained, iteration.in_backward))
        stepped = iteration.scaler.stepped_before
        hooks.enter_context(watched_steps(iteration, lambda optimizer: stepped.update(parameters_of(optimizer))))
    if iteration.index == 1:
        watch_accumulation(iteration, hooks)
