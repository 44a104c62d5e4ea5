"""Training steps with a scaler that is watched: what it found and did in each iteration, overflow planted or real."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, TypeAlias

import torch

from pytest_amp.cases import Case, MakeOptimizer, Realised, expect_graph, in_one_line, loss_of, made_of
from pytest_amp.devices import Device
from pytest_amp.devices.generators import seed_torch
from pytest_amp.failure import AmpFailure, Misuse, is_misuse
from pytest_amp.isolation.poison import is_sticky
from pytest_amp.numerics.errors import exact_copy
from pytest_amp.precision import Precision
from pytest_amp.scaler.reference import UpdateRule
from pytest_amp.scaler.refusal import likely_of_refusal
from pytest_amp.scaler.regions import note, noted_in_backward
from pytest_amp.scaler.unscaling import expect_unscaled
from pytest_amp.torch_private import found_infs

__tracebackhide__ = is_misuse

INFINITE = float("inf")


@dataclass(frozen=True)
class TraceStep:
    """One iteration: the scale that its loss was multiplied by, and what became of it.

    ``found_inf`` is what the scaler's check found in any optimizer's gradients, ``skipped`` whether
    ``step`` was called and no parameter changed. ``scale_after`` and ``growth_tracker`` are those after
    the iteration.
    """

    scale: float
    found_inf: bool
    skipped: bool
    scale_after: float
    growth_tracker: int


class RefusedOverflow(Exception):
    """A training step that raises where an inf was planted in its forward pass."""

    def __init__(self, iteration: Iteration, error: Exception) -> None:
        """``error`` is what it raised."""
        super().__init__(in_one_line(error))
        self.place = f"{iteration.index} ({iteration.planted_in})"


class WatchedScaler(torch.amp.GradScaler):
    """A GradScaler that notes the calls of an iteration, and what it found."""

    def __init__(self, device_type: str, scale: float, rule: UpdateRule, *, enabled: bool = True) -> None:
        """Enabled unless told otherwise, from ``scale`` on."""
        super().__init__(
            device_type,
            enabled=enabled,
            init_scale=scale,
            growth_factor=rule.growth_factor,
            backoff_factor=rule.backoff_factor,
            growth_interval=rule.growth_interval,
        )
        self.begin()

    def begin(self) -> None:
        """A new iteration: nothing was called."""
        self.called: list[str] = []
        #: The dtypes of what was scaled.
        self.scaled: set[torch.dtype] = set()
        self.found_inf = False
        self.stepping: torch.optim.Optimizer | None = None
        self.moved = False
        self.refused: Exception | None = None

    @contextmanager
    def _noting(self, method: str) -> Iterator[None]:
        self.called.append(method)
        try:
            yield
        except (RuntimeError, AssertionError, ValueError) as error:
            self.refused = error
            raise

    def scale(self, outputs: Any) -> Any:
        """As GradScaler's."""
        if isinstance(outputs, torch.Tensor):
            self.scaled.add(outputs.dtype)
        return super().scale(outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """As GradScaler's."""
        with self._noting("unscale_"):
            super().unscale_(optimizer)
        self.found_inf |= any(found_infs(self, optimizer).values())

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """As GradScaler's."""
        before = [p.detach().clone() for p in _parameters(optimizer)]
        self.stepping = optimizer
        try:
            with self._noting("step"):
                result = super().step(optimizer, *args, **kwargs)
        finally:
            self.stepping = None
        self.found_inf |= any(found_infs(self, optimizer).values())
        after = _parameters(optimizer)
        self.moved |= not _all_identical(before, after)
        return result

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """As GradScaler's."""
        with self._noting("update"):
            super().update(new_scale)

    def traced(self, scale: float) -> TraceStep:
        """What the iteration that began with ``scale`` left."""
        state = self.state_dict()
        skipped = "step" in self.called and not self.moved
        return TraceStep(scale, self.found_inf, skipped, state["scale"], state["_growth_tracker"])


def refused(where: str, error: Exception, *, by_optimizer: bool = False) -> AmpFailure:
    """The failure of a training step that GradScaler, or the optimizer that it calls, refuses, in the words of that."""
    return AmpFailure(
        f"{where}: {'the optimizer' if by_optimizer else 'GradScaler'} refuses the training step",
        now=f"{type(error).__name__}: {error}",
        likely=likely_of_refusal(error, by_optimizer=by_optimizer),
    )


@dataclass
class Iteration:
    """What a training step is given: everything it needs for one iteration.

    ``loss()`` is the case's loss for its batch, and belongs into ``autocast()``. ``index`` counts from 0.
    """

    model: torch.nn.Module
    batch: Any
    optimizer: torch.optim.Optimizer
    scaler: WatchedScaler
    index: int
    case: Case
    device: Device
    precision: Precision
    #: Gradients that the optimizer's own step was given, float64 on the CPU, divided by the scale.
    seen: list[torch.Tensor] = field(default_factory=list, init=False)
    #: Whether the optimizer's own step was called by anybody but the scaler.
    stepped_alone: bool = field(default=False, init=False)
    #: Whether overflow was planted, and the name of the module in whose result (empty for a gradient).
    planted: bool = field(default=False, init=False)
    planted_in: str = field(default="", init=False)
    #: Names of parameters that began with a gradient of the iteration before.
    stale: list[str] = field(default_factory=list, init=False)
    #: In which dtypes autocast was on where the model or the loss was called.
    regions: set[torch.dtype] = field(default_factory=set, init=False)
    #: In which dtypes autocast was on where backward was called; it should be on in none.
    in_backward: set[torch.dtype] = field(default_factory=set, init=False)
    #: The scaler's growth tracker before the iteration.
    tracker_before: int = field(default=0, init=False)

    def loss(self) -> torch.Tensor:
        """The loss to scale."""
        note(self.device.type, self.regions)
        loss = loss_of(self.case.loss(self.model, self.batch))
        expect_graph(loss, case=self.case.name)
        return loss

    def autocast(self) -> Any:
        """An autocast region on the device, in the dtype under test."""
        return self.device.autocast(self.precision.dtype)


Train: TypeAlias = Callable[[Iteration], object]


def standard_step(iteration: Iteration) -> None:
    """The training step of torch's documentation: zero_grad, forward, scaled backward, step, update."""
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss = iteration.loss()
    backward: Any = iteration.scaler.scale(loss)
    backward.backward()
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


def plain_sgd(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """A step that is small enough to keep the loss where it is."""
    return torch.optim.SGD(parameters, lr=2.0**-10)


@dataclass(frozen=True)
class Training:
    """A case, the user's training step and optimizer, and in which iterations overflow is planted.

    ``overflow_at``: in a gradient, as it is accumulated. ``forward_at``: in what the first module returns
    in the low dtype, as an overflow of the product would leave it.
    """

    case: Case
    device: Device
    precision: Precision
    _: KW_ONLY
    seed: int = 0
    train: Train = standard_step
    make_optimizer: MakeOptimizer = plain_sgd
    overflow_at: Collection[int] = ()
    forward_at: Collection[int] = ()

    def iterations(self, steps: int, scale: float, rule: UpdateRule) -> Iterator[tuple[Iteration, TraceStep]]:
        """Run ``steps`` iterations on a fresh model; each with its trace, right after it ran."""
        realised: Realised = self.case.realise(seed=self.seed).on(self.device.torch_device)
        parameters = [p for p in realised.model.parameters() if p.requires_grad]
        if not parameters:
            raise Misuse(f"case {self.case.name}: the model has no parameter that requires a gradient")
        narrow = [name for name, p in realised.model.named_parameters() if p.requires_grad and p.dtype == torch.float16]
        if narrow:
            raise Misuse(
                f"case {self.case.name}: {narrow[0]} is float16, and no scaler unscales such gradients; "
                "valid: float32, which autocast casts"
            )
        optimizer = made_of(parameters, self.make_optimizer)
        expect_unscaled(self.case.name, realised.model, optimizer, self.device.torch_device)
        scaler = WatchedScaler(self.device.type, scale, rule)
        for index in range(steps):
            iteration = Iteration(
                realised.model, realised.batch, optimizer, scaler, index, self.case, self.device, self.precision
            )
            scaler.begin()
            seed_torch(self.seed + index)
            saved = scaler.state_dict()
            before, iteration.tracker_before = saved["scale"], saved["_growth_tracker"]
            with ExitStack() as hooks:
                hooks.callback(optimizer.register_step_pre_hook(_seeing(iteration)).remove)
                hooks.callback(realised.model.register_forward_pre_hook(_noting(iteration)).remove)
                watch_backward(iteration, hooks)
                if index in self.overflow_at:
                    _plant_in_a_gradient(iteration, hooks)
                if index in self.forward_at:
                    _plant_in_an_activation(iteration, hooks)
                self._step(iteration)
            yield iteration, scaler.traced(before)

    def _step(self, iteration: Iteration) -> None:
        """Run the training step. Raises RefusedOverflow, and AmpFailure, for an error at a planted overflow."""
        try:
            self.train(iteration)
        except Misuse:
            raise
        except Exception as error:  # whatever a project's own code raises
            if not iteration.planted or iteration.scaler.refused is error or is_sticky(error):
                raise
            if iteration.index in self.forward_at:
                raise RefusedOverflow(iteration, error) from error
            raise AmpFailure(
                f"{self.case.name}, iteration {iteration.index}: the training step raises at an inf in a gradient",
                label_before="rule",
                before="scaler.step skips a step with an inf or NaN among its gradients, and training goes on",
                now=in_one_line(error),
                likely="gradients are checked or clipped with error_if_nonfinite=True, or anomalies are detected",
            ) from error


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
    return tuple(traced)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _identical(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Equality for which NaN equals NaN: a bool tensor of no dimensions, where ``left`` is."""
    return ((left == right) | (left.isnan() & right.isnan())).all()


def _all_identical(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    """Whether all pairs are, read once for each device: each read waits for it."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for old, new in zip(left, right, strict=True):
        same = _identical(old, new)
        by_device.setdefault(same.device, []).append(same)
    return all(bool(torch.stack(each).all()) for each in by_device.values())


def _seeing(iteration: Iteration) -> Callable[..., None]:
    """A hook before the optimizer's own step: the gradients that it sees, and who calls it.

    A fused optimizer sees scaled gradients, and the scale beside them (``grad_scale``).
    """

    def hook(optimizer: torch.optim.Optimizer, _args: Any, _keywords: Any) -> None:
        if iteration.scaler.stepping is not optimizer:
            iteration.stepped_alone = True
        scale = getattr(optimizer, "grad_scale", None)
        gradients = [p.grad for p in _parameters(optimizer) if p.grad is not None]
        iteration.seen = [exact_copy(g / scale if scale is not None else g) for g in gradients]

    return hook


def _noting(iteration: Iteration) -> Callable[..., None]:
    """A hook before the model's forward pass: in which dtype autocast is on."""

    def hook(_module: torch.nn.Module, _inputs: Any) -> None:
        note(iteration.device.type, iteration.regions)

    return hook


def watch_backward(iteration: Iteration, hooks: ExitStack) -> None:
    """In the first iteration, whether it is within a region; in the second, whether it adds to gradients of the first.

    Once each is enough, and hooks take time.
    """
    if iteration.index == 0:
        trained = [parameter for parameter in iteration.model.parameters() if parameter.requires_grad]
        hooks.enter_context(noted_in_backward(iteration.device.type, trained, iteration.in_backward))
    if iteration.index == 1:
        _watch_accumulation(iteration, hooks)


def _watch_accumulation(iteration: Iteration, hooks: ExitStack) -> None:
    """Whether the first gradient of a parameter in this iteration is added to one that is there already."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in iteration.model.named_parameters()}
    coming: dict[torch.Tensor, torch.Tensor] = {}
    added: set[torch.Tensor] = set()

    def before(parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        if parameter not in added:
            coming[parameter] = gradient.detach().clone()

    def after(parameter: torch.Tensor) -> None:
        if parameter in added or parameter not in coming:
            return
        added.add(parameter)
        new, all_of_it = coming.pop(parameter), parameter.grad
        if all_of_it is None or all_of_it.is_sparse or new.is_sparse:
            return
        if not bool(_identical(all_of_it.detach(), new)):
            iteration.stale.append(names.get(parameter, "a parameter"))

    for parameter in _parameters(iteration.optimizer):
        if parameter.requires_grad:
            untyped: Any = parameter
            hooks.callback(untyped.register_hook(functools.partial(before, parameter)).remove)
            hooks.callback(untyped.register_post_accumulate_grad_hook(after).remove)


def _plant_in_a_gradient(iteration: Iteration, hooks: ExitStack) -> None:
    """In the first gradient that backward accumulates for the optimizer, which need not have every parameter."""

    def plant(parameter: torch.Tensor) -> None:
        if not iteration.planted and parameter.grad is not None and parameter.grad.numel():
            parameter.grad.mul_(INFINITE)
            iteration.planted = True

    untyped: list[Any] = [p for p in _parameters(iteration.optimizer) if p.requires_grad]
    for parameter in untyped:
        hooks.callback(parameter.register_post_accumulate_grad_hook(plant).remove)


def _plant_in_an_activation(iteration: Iteration, hooks: ExitStack) -> None:
    """In the first element of the first tensor that a module returns in the autocast dtype."""
    low = iteration.precision.dtype

    names = {module: name for name, module in iteration.model.named_modules()}

    def plant(module: torch.nn.Module, _inputs: Any, output: Any) -> Any:
        if iteration.planted or not isinstance(output, torch.Tensor) or output.dtype is not low:
            return None
        if output.numel() == 0:
            return None
        iteration.planted, iteration.planted_in = True, names.get(module) or type(module).__name__
        overflow = torch.zeros(output.shape, dtype=low, device=output.device)
        overflow.view(-1)[0] = INFINITE
        return output + overflow  # a sum, so that the gradient of the overflow goes back, as a real one's does

    for module in iteration.model.modules():
        if not isinstance(module, torch.jit.ScriptModule):  # it takes no hooks
            hooks.callback(module.register_forward_hook(plant).remove)
