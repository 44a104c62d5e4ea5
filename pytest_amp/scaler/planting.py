"""Planting of overflow in an iteration: in a gradient after backward, or in the result of a module."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from pytest_amp import torch_private
from pytest_amp.numerics.errors import dense
from pytest_amp.scaler.iteration import Iteration
from pytest_amp.scaler.watched import parameters_of

INFINITE = float("inf")


def plant_in_a_gradient(iteration: Iteration, hooks: ExitStack) -> None:
    """Plant in the first gradient that backward accumulates for the parameters ``iteration.targets``.

    Without any, plant in the first gradient that the scaler is about to read. A gradient that is zeroed before its
    optimizer steps, because it was that of another loss, is followed by one more.
    """
    overflow = _Overflow(iteration, {id(parameter) for parameter in iteration.targets})
    untyped: list[Any] = [p for p in iteration.targets if p.requires_grad]
    for parameter in untyped:
        hooks.callback(parameter.register_post_accumulate_grad_hook(overflow.plant).remove)

    def before(method: Callable[..., Any]) -> Callable[..., Any]:
        def planting(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if overflow.latest is None and overflow.is_target(optimizer):
                for parameter in iteration.targets:  # also those that required no gradient when the iteration began
                    overflow.plant(parameter)
            return method(optimizer, *args, **kwargs)

        return planting

    # Gradients of torch.autograd.grad, which a step assigns itself, pass no hook.
    for name in ("unscale_", "step"):
        method = getattr(iteration.scaler, name)
        hooks.enter_context(mock.patch.object(iteration.scaler, name, before(method)))


@dataclass
class _Overflow:
    """Overflow in the gradients of the parameters with the ids ``targets``, at ``latest`` if it is planted."""

    iteration: Iteration
    targets: set[int]
    latest: torch.Tensor | None = None

    def plant(self, parameter: torch.Tensor) -> None:
        """Plant in the gradient of ``parameter``, unless an overflow is there or has been stepped with."""
        if parameter.grad is None or not parameter.grad.numel():
            return
        if self.latest is not None and (self._is_stepped() or not _is_finite(self.latest)):
            return
        parameter.grad.mul_(INFINITE)
        self.latest, self.iteration.planted = parameter, True

    def is_target(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether the optimizer is that of the parameters."""
        return {id(parameter) for parameter in parameters_of(optimizer)} == self.targets

    def _is_stepped(self) -> bool:
        return any(self.is_target(step.optimizer) for step in self.iteration.scaler.steps)


def _is_finite(parameter: torch.Tensor) -> bool:
    return parameter.grad is None or bool(dense(parameter.grad).isfinite().all())


def plant_in_an_activation(iteration: Iteration, hooks: ExitStack) -> None:
    """Plant in the first element of the first tensor in the autocast dtype that a module returns, at any depth."""
    names = {module: name for name, module in iteration.model.named_modules()}

    def plant(module: torch.nn.Module, _inputs: Any, output: Any) -> Any:
        if iteration.planted:
            return None
        leaves, layout = torch_private.flat(output)
        place = next(
            (place for place, leaf in enumerate(leaves) if _is_plantable(leaf, iteration.precision.dtype)), None
        )
        if place is None:
            return None
        iteration.planted, iteration.planted_in = True, names.get(module) or type(module).__name__
        overflow = torch.zeros(leaves[place].shape, dtype=leaves[place].dtype, device=leaves[place].device)
        overflow.view(-1)[0] = INFINITE
        # A sum, so that the gradient of the overflow propagates as a real one's does.
        leaves[place] = leaves[place] + overflow
        return torch_private.unflat(leaves, layout)

    for module in iteration.model.modules():
        if not isinstance(module, torch.jit.ScriptModule):  # it does not support hooks
            hooks.callback(module.register_forward_hook(plant).remove)


def _is_plantable(leaf: Any, dtype: torch.dtype) -> bool:
    """Return whether a leaf is a tensor of the dtype with at least one element."""
    return isinstance(leaf, torch.Tensor) and leaf.dtype is dtype and leaf.numel() > 0
