"""Tensors that a training step replaces, as in a queue of features: low precision loses no update there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from pytest_amp.training.constants import frozen_tensors
from pytest_amp.training.trajectory import Setup, TrainingIteration, run

#: Number of steps that are examined: an average that starts with its first value replaces nothing in the second step.
_EXAMINED = 2


@dataclass
class Replaced:
    """Replaced tensors of a training run, determined by separate runs once a frozen tensor is low-precision.

    Before a step the tensor is disturbed. If the step writes the same values nevertheless, and leaves all others alone,
    it adds nothing to what was there.
    """

    setup: Setup
    _known: dict[str, bool] = field(default_factory=dict)

    def has(self, name: str, iteration: TrainingIteration) -> bool:
        """Return whether each step replaces the frozen tensor ``name``, or rows of it."""
        if name not in self._known:
            first = _written(self.setup, name, low=iteration.low)
            self._known[name] = all(
                _is_independent(first[step], _written(self.setup, name, low=iteration.low, disturbed=step)[step])
                for step in range(_EXAMINED)
            )
        return self._known[name]


@dataclass(frozen=True)
class _Write:
    """Values of a tensor before and after a step."""

    before: torch.Tensor
    after: torch.Tensor


def _written(setup: Setup, name: str, *, low: bool, disturbed: int | None = None) -> dict[int, _Write]:
    """Return what the first attempt at each of the first steps does to a tensor, disturbed before the given step."""
    writes: dict[int, _Write] = {}

    def train(iteration: TrainingIteration) -> None:
        is_first = iteration.index not in writes
        tensor = frozen_tensors(iteration.model)[name]
        if is_first and iteration.index == disturbed:
            with torch.no_grad():
                tensor.mul_(1.25).add_(0.125)
        before = tensor.clone()
        setup.train(iteration)
        if is_first:
            writes[iteration.index] = _Write(before, frozen_tensors(iteration.model).get(name, before).clone())

    run(replace(setup, train=train, steps=_EXAMINED), low=low)
    return writes


def _is_independent(first: _Write, disturbed: _Write) -> bool:
    """Return whether a step wrote values, and the same ones after the disturbance."""
    if first.after.shape != disturbed.after.shape or first.before.shape != first.after.shape:
        return False
    unwritten = (first.before == first.after) & (disturbed.before == disturbed.after)
    same = first.after == disturbed.after
    return bool((unwritten | same).all()) and bool((same & ~unwritten).any())
