"""Observe the step of a training's optimizer: the gradients that it receives, and the changes that it makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from pytest_amp.numerics.errors import real_parts
from pytest_amp.precision import FP32
from pytest_amp.scaler import Iteration
from pytest_amp.scaler.iteration import watched_calls
from pytest_amp.scaler.trace import watch_backward
from pytest_amp.training.joined import added, joined
from pytest_amp.training.noise import Noise

#: Number of first steps whose gradients are compared parameter by parameter.
GRADIENT_STEPS = 2


class OptimizerObserver:
    """Observer of the optimizer's own step: the gradients that it receives, and the changes that it makes."""

    def __init__(self, iteration: Iteration, parameters: list[torch.nn.Parameter], noise: Noise | None) -> None:
        """Prepare for the step of ``iteration.optimizer``; a companion adds ``noise`` to its gradients."""
        self.iteration, self.parameters, self.noise = iteration, parameters, noise
        self.lost = self.zero = self.negligible = self.norm = 0.0
        #: Whether the optimizer's own step is running.
        self.stepping = False
        self._before: list[torch.Tensor] = []
        self._negligible = torch.zeros(1)
        self.gradients: dict[str, torch.Tensor] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the optimizer during a training step."""
        iteration = self.iteration
        with ExitStack() as hooks:
            hooks.callback(iteration.optimizer.register_step_pre_hook(self._enter).remove)
            hooks.callback(iteration.optimizer.register_step_post_hook(self._leave).remove)
            hooks.enter_context(watched_calls(iteration))
            watch_backward(iteration, hooks)
            yield

    def _enter(self, optimizer: torch.optim.Optimizer, _args: Any, _keywords: Any) -> None:
        scaler, self.stepping = self.iteration.scaler, True
        self.iteration.note_step(optimizer, watched=scaler.is_enabled())
        self._before = [p.detach().clone() for p in self.parameters]
        self._negligible = _count_negligible(self.parameters)
        if self.noise is not None:
            self.noise.add_to_gradients()
        if self.iteration.index < GRADIENT_STEPS:
            scale = float(getattr(optimizer, "grad_scale", None) or 1.0)
            # Leave out parameters that this optimizer does not update: their gradients are still scaled.
            updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            self.gradients = {
                name: parameter.grad.detach().clone() / scale
                for name, parameter in self.iteration.model.named_parameters()
                if id(parameter) in updated and parameter.grad is not None and not parameter.grad.is_sparse
            }

    def _leave(self, optimizer: torch.optim.Optimizer, _args: Any, _keywords: Any) -> None:
        self.stepping = False
        size, sums = 0, []
        rows = [
            (real_parts(parameter.grad.detach()), real_parts(parameter.detach()), real_parts(before))
            for parameter, before in zip(self.parameters, self._before, strict=True)
            if parameter.grad is not None and not parameter.grad.is_sparse
        ]
        for gradient, after, before in joined(*zip(*rows, strict=True)):
            zero = gradient == 0
            size += zero.numel()
            unchanged = (after == before) & ~zero
            sums.append(torch.stack([x.double().sum() for x in (gradient.double().square(), zero, unchanged)]))
        # Copy all sums to the host at once: each copy waits for the device.
        total = added(sums) if sums else torch.zeros(3, dtype=torch.float64)
        squares, zeros, unchanged_count, negligible = torch.cat([total, self._negligible.to(total.device)]).tolist()
        self.lost, self.zero = unchanged_count / max(size - zeros, 1), zeros / max(size, 1)
        self.negligible = negligible / max(size, 1)
        self.norm = squares**0.5 / float(getattr(optimizer, "grad_scale", None) or 1.0)


def _count_negligible(parameters: Sequence[torch.nn.Parameter]) -> torch.Tensor:
    """Return the number of negligible elements of dense gradients (see ``TrajectoryStep``), a tensor of one element."""
    gradients = [real_parts(p.grad.detach()) for p in parameters if p.grad is not None and not p.grad.is_sparse]
    if not gradients:
        return torch.zeros(1, dtype=torch.float64)
    parts = [part for (part,) in joined(gradients)]
    squares = added([part.double().square().sum() for part in parts])
    below = FP32.u * (squares / max(sum(part.numel() for part in parts), 1)).sqrt()
    return added([(part.abs() <= below.to(part.device)).double().sum().view(1) for part in parts])
