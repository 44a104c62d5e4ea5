"""Planting of overflow in an iteration: in a gradient after backward, or in the result of a module."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch

from pytest_amp.scaler.iteration import Iteration
from pytest_amp.scaler.watched import parameters_of

INFINITE = float("inf")


def plant_in_a_gradient(iteration: Iteration, hooks: ExitStack) -> None:
    """Plant in the first gradient that backward accumulates for the optimizer, which may lack some parameters.

    Without any, plant in the first gradient that the scaler is about to read.
    """

    def plant(parameter: torch.Tensor) -> None:
        if not iteration.planted and parameter.grad is not None and parameter.grad.numel():
            parameter.grad.mul_(INFINITE)
            iteration.planted = True

    untyped: list[Any] = [p for p in parameters_of(iteration.optimizer) if p.requires_grad]
    for parameter in untyped:
        hooks.callback(parameter.register_post_accumulate_grad_hook(plant).remove)

    def before(method: Callable[..., Any]) -> Callable[..., Any]:
        def planting(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            for parameter in untyped if optimizer is iteration.optimizer else ():
                plant(parameter)
            return method(optimizer, *args, **kwargs)

        return planting

    # Gradients of torch.autograd.grad, which a step assigns itself, pass no hook.
    for name in ("unscale_", "step"):
        method = getattr(iteration.scaler, name)
        hooks.enter_context(mock.patch.object(iteration.scaler, name, before(method)))


def plant_in_an_activation(iteration: Iteration, hooks: ExitStack) -> None:
    """Plant in the first element of the first tensor that a module returns in the autocast dtype."""
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
        return output + overflow  # a sum, so that the gradient of the overflow propagates as a real one's does

    for module in iteration.model.modules():
        if not isinstance(module, torch.jit.ScriptModule):  # it does not support hooks
            hooks.callback(module.register_forward_hook(plant).remove)
