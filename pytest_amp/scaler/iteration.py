"""Iteration that a training step receives, the same in every check of a loop, with notes on the running step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, TypeAlias
from unittest import mock

import torch

from pytest_amp.cases import Case, expect_graph, loss_of
from pytest_amp.devices import Device
from pytest_amp.numerics.callers import calling_line
from pytest_amp.numerics.prediction import manual_region
from pytest_amp.precision import Precision
from pytest_amp.scaler.regions import note
from pytest_amp.scaler.watched import WatchedScaler


@dataclass
class Iteration:
    """What a training step receives: everything that one iteration needs.

    ``index`` counts the iterations from 0. ``loss()`` computes the case's loss for ``batch``; call it inside
    ``autocast()``. A step may also call ``model`` and compute another loss. In a run in float32 ``low`` is False, and
    ``autocast()`` and ``scaler`` are disabled. ``kept`` is a dictionary for objects that outlive the step, such as a
    learning rate scheduler or averaged weights.
    """

    model: torch.nn.Module
    batch: Any
    optimizer: torch.optim.Optimizer
    scaler: WatchedScaler
    index: int
    case: Case
    device: Device
    precision: Precision
    _: KW_ONLY
    low: bool = True
    #: Whether the float32 run has manual casts, for a case that does not run without autocast.
    manual: bool = False
    kept: dict[str, Any] = field(default_factory=dict)
    #: Gradients that each optimizer's own step received, float64 on the CPU, divided by the scale.
    gradients_by_step: list[list[torch.Tensor]] = field(default_factory=list, init=False)
    #: Whether ``optimizer.step`` was called, whether not by the scaler, and the lines of calls not by the scaler.
    stepped: bool = field(default=False, init=False)
    stepped_alone: bool = field(default=False, init=False)
    step_lines: list[str] = field(default_factory=list, init=False)
    #: Lines of steps, not by the scaler, of optimizers that the training step has made itself.
    bypassing_lines: list[str] = field(default_factory=list, init=False)
    #: Whether overflow was planted, the module in whose result (empty for a gradient), and the parameters of the
    #: optimizer in one of whose gradients.
    planted: bool = field(default=False, init=False)
    planted_in: str = field(default="", init=False)
    targets: list[torch.Tensor] = field(default_factory=list, init=False)
    #: Names of parameters that began with a gradient of the previous iteration.
    stale: list[str] = field(default_factory=list, init=False)
    #: Names of parameters with which the optimizer stepped twice, the second time with the first gradient added.
    stale_within: list[str] = field(default_factory=list, init=False)
    #: Names of parameters whose gradients began before an update and were stepped after it, with the number of updates
    #: before the gradient.
    scaled_before_update: dict[str, int] = field(default_factory=dict, init=False)
    #: Dtypes in which autocast was on when the model or the loss was called, and the lines of these calls.
    regions: set[torch.dtype] = field(default_factory=set, init=False)
    call_lines: list[str] = field(default_factory=list, init=False)
    #: Dtypes in which autocast was on at any call of torch in the first iteration, with the first line of each.
    operator_regions: dict[torch.dtype, str | None] = field(default_factory=dict, init=False)
    #: Dtypes in which autocast was on when backward was called; there should be none.
    in_backward: set[torch.dtype] = field(default_factory=set, init=False)
    #: Backward passes: the line of each, and whether its root had been scaled.
    backwards: list[Backward] = field(default_factory=list, init=False)
    #: Lines that created a scaler of their own.
    scaler_lines: list[str] = field(default_factory=list, init=False)
    #: Growth tracker of the scaler before the iteration.
    tracker_before: int = field(default=0, init=False)
    #: Results of ``loss()``, by value, and the dtype of the last one.
    losses: list[float] = field(default_factory=list, init=False)
    loss_dtype: torch.dtype = field(default=torch.float32, init=False)

    def loss(self) -> torch.Tensor:
        """The loss to scale."""
        self.note_call()
        loss = loss_of(self.case.loss(self.model, self.batch))
        expect_graph(loss, case=self.case.name)
        self._add(loss)
        return loss

    def autocast(self) -> Any:
        """An autocast region on the device, in the dtype under test; a disabled one in the run in float32."""
        if self.manual and not self.low:
            return manual_region(self.device, self.precision, inside=True)()
        return self.device.autocast(self.precision.dtype, enabled=self.low)

    def note_call(self) -> None:
        """Note the region, and the line, of a call of the model or the loss."""
        note(self.device.type, self.regions)
        if torch.compiler.is_compiling():  # Dynamo, which traces this as a hook of the model, has no frames
            return
        line = calling_line()
        if line is not None and line not in self.call_lines:
            self.call_lines.append(line)

    def note_step(self, optimizer: torch.optim.Optimizer, *, watched: bool = True) -> None:
        """Note a call of ``step`` of any optimizer; if ``watched``, one not by the scaler is noted with its line."""
        is_alone = watched and self.scaler.stepping is None
        line = calling_line() if is_alone else None
        lines = [line] if line is not None else []
        if optimizer is self.optimizer:
            self.stepped = True
            self.stepped_alone |= is_alone
            self.step_lines += lines
        else:
            self.bypassing_lines += lines

    def conclude(self, returned: object) -> None:
        """If ``loss()`` was not called, use the returned tensor, the scaled losses, or the roots of backward passes."""
        if self.losses:
            return
        tensors = [returned] if isinstance(returned, torch.Tensor) and returned.numel() == 1 else []
        roots = [backward.root for backward in self.backwards if backward.root is not None]
        for loss in tensors or self.scaler.losses or roots:
            if loss.numel() == 1:
                self._add(loss)
        if isinstance(returned, float) and not self.losses:  # with a loss, the number may be an accuracy, for example
            self.losses = [returned]

    def _add(self, loss: torch.Tensor) -> None:
        self.losses.append(loss.item())
        self.loss_dtype = loss.dtype

    @property
    def is_left_out(self) -> bool:
        """True if the step returned without a backward pass, a call of the scaler or an optimizer step."""
        return not (self.backwards or self.scaler.called or self.stepped or self.bypassing_lines)

    @property
    def unscaled_lines(self) -> list[str]:
        """The lines of backward passes that began with something that was not scaled."""
        return list(dict.fromkeys(call.line for call in self.backwards if not call.is_scaled and call.line))

    @property
    def backward_lines(self) -> list[str]:
        """The lines of all backward passes."""
        return list(dict.fromkeys(call.line for call in self.backwards if call.line))


@dataclass(frozen=True)
class Backward:
    """Backward pass: the user's line, its root, whether that was scaled, and the number of scaler calls before it."""

    line: str | None
    root: torch.Tensor | None
    is_scaled: bool
    calls: int = 0

    def without_root(self) -> Backward:
        """Return a copy without the tensor, which must not outlive the iteration."""
        return replace(self, root=None)


#: Function that a training calls once an iteration; it may return the loss.
Train: TypeAlias = Callable[[Iteration], object]


@contextmanager
def watched_calls(iteration: Iteration) -> Iterator[None]:
    """Note inside the block each backward pass, each call of the model, and each scaler that the step creates."""
    backward, construct = torch.autograd.backward, torch.amp.GradScaler.__init__

    def noted_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        line = calling_line()
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        scaler = iteration.scaler
        for root in roots[:1]:
            iteration.backwards.append(Backward(line, root.detach(), scaler.has_scaled(root), len(scaler.called)))
        return backward(tensors, *args, **kwargs)

    def noted_construct(scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> None:
        line = calling_line()
        if line is not None:
            iteration.scaler_lines.append(line)
        construct(scaler, *args, **kwargs)

    def before_forward(_module: torch.nn.Module, _inputs: Any) -> None:
        iteration.note_call()

    handle = iteration.model.register_forward_pre_hook(before_forward)
    try:
        with (
            mock.patch.object(torch.autograd, "backward", noted_backward),
            mock.patch.object(torch.amp.GradScaler, "__init__", noted_construct),
        ):
            yield
    finally:
        handle.remove()


def standard_step(iteration: Iteration) -> None:
    """Run the training step of torch's documentation: zero_grad, forward, scaled backward, step, update."""
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss = iteration.loss()
    backward: Any = iteration.scaler.scale(loss)
    backward.backward()
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


#: Learning rate of ``plain_sgd`` for gradients with a norm of at most one.
_LEARNING_RATE = 2.0**-10


def plain_sgd(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return SGD with a learning rate so small that the loss hardly changes.

    The first step divides the rate by a power of two if the norm of the gradients is above one, as that of second
    derivatives in a physics-informed network is: with the full rate the loss could diverge, and overflow in float16
    where no overflow was planted. Low-precision parameters keep the rate, since small updates round away.
    """
    optimizer = torch.optim.SGD(parameters, lr=_LEARNING_RATE)

    def lower_rate(*_: object) -> None:
        handle.remove()
        norm = math.hypot(*(float(p.grad.norm()) for p in parameters if p.grad is not None))
        if 1 < norm < math.inf:
            for group in optimizer.param_groups:
                group["lr"] *= 2.0 ** -math.ceil(math.log2(norm))

    if all(parameter.dtype == torch.float32 for parameter in parameters):
        handle = optimizer.register_step_pre_hook(lower_rate)
    return optimizer
