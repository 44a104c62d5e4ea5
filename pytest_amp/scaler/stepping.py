"""Steps of every optimizer of a model inside a training step, including optimizers that the step creates."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from pytest_amp.scaler.watched import WatchedScaler, parameters_of

if TYPE_CHECKING:
    from pytest_amp.scaler.iteration import Iteration

#: Function that is called before or after the step of an optimizer.
OnStep = Callable[[torch.optim.Optimizer], object]


@contextmanager
def watched_steps(iteration: Iteration, before: OnStep, after: OnStep = lambda _: None) -> Iterator[None]:
    """Call ``before`` and ``after`` inside the block around the step of each optimizer of the model's parameters.

    This includes optimizers that the training step makes and keeps. A step that runs within another one, as in an
    optimizer that wraps an optimizer, counts only if it is that of ``iteration.optimizer``.
    """
    trained = {id(parameter) for parameter in iteration.model.parameters()}
    # By thread: the hooks are those of the process, and backward hooks, which may step, run in threads of autograd.
    by_thread: dict[int, list[torch.optim.Optimizer]] = defaultdict(list)

    def is_of_model(optimizer: torch.optim.Optimizer) -> bool:
        return optimizer is iteration.optimizer or any(id(p) in trained for p in parameters_of(optimizer))

    def counts(optimizer: torch.optim.Optimizer) -> bool:
        return optimizer is iteration.optimizer or by_thread[threading.get_ident()] == [optimizer]

    def entering(optimizer: torch.optim.Optimizer, _args: Any, _keywords: Any) -> None:
        if not is_of_model(optimizer):
            return
        by_thread[threading.get_ident()].append(optimizer)
        if counts(optimizer):
            before(optimizer)

    def leaving(optimizer: torch.optim.Optimizer, _args: Any, _keywords: Any) -> None:
        running = by_thread[threading.get_ident()]
        if optimizer not in running:
            return
        if counts(optimizer):
            after(optimizer)
        running.remove(optimizer)

    handles = register_optimizer_step_pre_hook(entering), register_optimizer_step_post_hook(leaving)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class SteppedOptimizers:
    """Optimizers that the iterations of a training have stepped with the scaler, by their parameters."""

    groups: list[list[torch.Tensor]] = field(default_factory=list)

    def note(self, scaler: WatchedScaler) -> list[int]:
        """Add the optimizers that an iteration has stepped, and return their numbers."""
        numbers = []
        for step in scaler.steps:
            parameters = parameters_of(step.optimizer)
            number = self.number_of(parameters)
            if number is None:
                number = len(self.groups)
                self.groups.append(parameters)
            numbers.append(number)
        return numbers

    def number_of(self, parameters: list[torch.Tensor]) -> int | None:
        """Return the number of the optimizer of these parameters, None if none was stepped."""
        sought = {id(parameter) for parameter in parameters}
        same = (number for number, group in enumerate(self.groups) if {id(entry) for entry in group} == sought)
        return next(same, None)

    def target(self, optimizer: torch.optim.Optimizer, number: int | None) -> list[torch.Tensor]:
        """Return the parameters of the optimizer with ``number``; without one ``optimizer``'s, if it is stepped."""
        parameters = parameters_of(optimizer)
        if number is not None and number < len(self.groups):
            return self.groups[number]
        return self.groups[0] if self.groups and self.number_of(parameters) is None else parameters
