"""Gradients that are added to old ones, or used after an update: of the iteration before, or of a step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from pytest_amp.numerics.errors import dense, stored_values
from pytest_amp.scaler.iteration import Iteration
from pytest_amp.scaler.stepping import watched_steps
from pytest_amp.scaler.watched import parameters_of


def watch_accumulation(iteration: Iteration, hooks: ExitStack) -> None:
    """Note parameters that an optimizer steps with old gradients, or with those of a loss before an update."""
    watch = _Accumulation(iteration, {parameter: name for name, parameter in iteration.model.named_parameters()})
    for parameter in dict.fromkeys([*iteration.model.parameters(), *parameters_of(iteration.optimizer)]):
        if parameter.requires_grad:
            untyped: Any = parameter
            hooks.callback(untyped.register_hook(functools.partial(watch.before, parameter)).remove)
            hooks.callback(untyped.register_post_accumulate_grad_hook(watch.after).remove)
    hooks.callback(watch.conclude)
    hooks.enter_context(watched_steps(iteration, watch.before_step, watch.after_step))
    hooks.enter_context(mock.patch.object(iteration.scaler, "step", watch.noting(iteration.scaler.step)))


@dataclass
class _Accumulation:
    """Accumulation of gradients in one iteration.

    ``coming`` are gradients before they are accumulated, and ``added`` the parameters that have one since the last
    step of their optimizer. ``stale`` are the parameters whose gradient was added to that of the iteration before, and
    ``reused`` those whose gradient was added to that of a step. They count if an optimizer steps with it: a backward
    pass of another model's loss may leave gradients, which are zeroed before the step. ``begun`` is the number of
    updates before the gradient of a parameter began.
    """

    iteration: Iteration
    names: dict[torch.Tensor, str]
    coming: dict[torch.Tensor, bool] = field(default_factory=dict)
    added: set[torch.Tensor] = field(default_factory=set)
    used: set[torch.Tensor] = field(default_factory=set)
    stale: dict[torch.Tensor, None] = field(default_factory=dict)
    reused: dict[torch.Tensor, None] = field(default_factory=dict)
    begun: dict[torch.Tensor, int] = field(default_factory=dict)

    @property
    def updates(self) -> int:
        """The number of updates so far in the iteration."""
        return len(self.iteration.scaler.rounds)

    def before(self, parameter: torch.Tensor, _gradient: torch.Tensor) -> None:
        """Keep the gradient that will be accumulated."""
        is_old = parameter in self.stale or parameter in self.reused or self.begun.get(parameter) != self.updates
        if parameter not in self.added or is_old:
            old = parameter.grad
            self.coming[parameter] = old is not None and bool(stored_values(old).any())

    def after(self, parameter: torch.Tensor) -> None:
        """Compare the accumulated gradient with the one that came."""
        if parameter not in self.coming:
            return
        is_added, is_first = self.coming.pop(parameter), parameter not in self.added
        self.added.add(parameter)
        if not is_added:
            self.begun[parameter] = self.updates
            self.stale.pop(parameter, None)
            self.reused.pop(parameter, None)
        else:
            self.begun.setdefault(parameter, self.updates)
            if is_first:
                (self.reused if parameter in self.used else self.stale).setdefault(parameter)

    def noting(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``scaler.step`` that notes the gradients that it is about to read, even if it skips."""

        def noted(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            self.before_step(optimizer, by_scaler=True)
            return step(optimizer, *args, **kwargs)

        return noted

    def before_step(self, optimizer: torch.optim.Optimizer, *, by_scaler: bool = False) -> None:
        """Note the parameters that step with an old gradient, or with one of a loss before the last update."""
        by_scaler |= self.iteration.scaler.stepping is not None
        for parameter in parameters_of(optimizer):
            name = self.names.get(parameter, "a parameter")
            if self._is_stale(parameter, optimizer, by_scaler=by_scaler):
                self.iteration.stale.append(name)
            if parameter in self.reused:
                self.iteration.stale_within.append(name)
            if by_scaler and self._is_before_update(parameter):
                self.iteration.scaled_before_update[name] = self.begun[parameter]
            for old in (self.stale, self.reused, self.begun):
                old.pop(parameter, None)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at the next gradients, too."""
        self.used.update(parameters_of(optimizer))
        self.added.difference_update(parameters_of(optimizer))

    def conclude(self) -> None:
        """Note old gradients of an iteration that steps nothing."""
        if not self.used and "step" not in self.iteration.scaler.called:
            for parameter in parameters_of(self.iteration.optimizer):
                if parameter in self.stale:
                    self.iteration.stale.append(self.names.get(parameter, "a parameter"))

    def _is_stale(self, parameter: torch.Tensor, optimizer: torch.optim.Optimizer, *, by_scaler: bool) -> bool:
        """Return whether a step uses an old gradient.

        Without loss scaling another optimizer may accumulate the gradients of several iterations. With a scaler an
        update between them changes the scale.
        """
        scaler = self.iteration.scaler
        counts = optimizer is self.iteration.optimizer or by_scaler or parameter in scaler.stepped_before
        return counts and parameter in self.stale

    def _is_before_update(self, parameter: torch.Tensor) -> bool:
        if not self.iteration.scaler.is_enabled() or parameter.grad is None:
            return False
        return self.begun.get(parameter, self.updates) < self.updates and bool(dense(parameter.grad.detach()).any())
