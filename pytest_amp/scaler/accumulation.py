"""Gradients that are added to old ones: of the iteration before, or of a step that has already used them."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_amp.scaler.iteration import Iteration
from pytest_amp.scaler.watched import identical, parameters_of


def watch_accumulation(iteration: Iteration, hooks: ExitStack) -> None:
    """Note parameters whose first gradient in this iteration, or after a step in it, is added to an existing one."""
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in iteration.model.named_parameters()}
    watch = _Accumulation(iteration, names)
    for parameter in parameters_of(iteration.optimizer):
        if parameter.requires_grad:
            untyped: Any = parameter
            hooks.callback(untyped.register_hook(functools.partial(watch.before, parameter)).remove)
            hooks.callback(untyped.register_post_accumulate_grad_hook(watch.after).remove)
    hooks.callback(iteration.optimizer.register_step_pre_hook(watch.before_step).remove)
    hooks.callback(iteration.optimizer.register_step_post_hook(watch.after_step).remove)


@dataclass
class _Accumulation:
    """Accumulation of gradients in one iteration.

    ``coming`` are gradients before they are accumulated, and ``added`` the parameters that have one since the last
    step. ``reused`` are the parameters with a gradient that was added to that of a step. They count if the optimizer
    steps again with it: a backward pass of another model's loss may leave gradients, which are zeroed before the step.
    """

    iteration: Iteration
    names: dict[torch.Tensor, str]
    coming: dict[torch.Tensor, torch.Tensor] = field(default_factory=dict)
    added: set[torch.Tensor] = field(default_factory=set)
    reused: dict[torch.Tensor, None] = field(default_factory=dict)

    def before(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        """Keep the gradient that will be accumulated."""
        if parameter not in self.added or parameter in self.reused:
            self.coming[parameter] = gradient.detach().clone()

    def after(self, parameter: torch.Tensor) -> None:
        """Compare the accumulated gradient with the one that came."""
        if parameter not in self.coming:
            return
        self.added.add(parameter)
        new, accumulated = self.coming.pop(parameter), parameter.grad
        if accumulated is None or accumulated.is_sparse or new.is_sparse:
            return
        if bool(identical(accumulated.detach(), new)):
            self.reused.pop(parameter, None)
        elif self.iteration.stepped:
            self.reused.setdefault(parameter)
        else:
            self.iteration.stale.append(self.names.get(parameter, "a parameter"))

    def before_step(self, *_: Any) -> None:
        """Note the parameters that step again with an old gradient."""
        self.iteration.stale_within += [self.names.get(parameter, "a parameter") for parameter in self.reused]
        self.reused.clear()

    def after_step(self, *_: Any) -> None:
        """Look at the next gradients, too."""
        self.added.clear()
