"""Constants of a training, parameters without a gradient and unwritten buffers, which may have a low dtype."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from pytest_amp.torch_private import written_memory
from pytest_amp.training.state import Rounded
from pytest_amp.training.trajectory import Setup, TrainingIteration, run

#: Number of steps that are examined operator by operator. A write in a later one is detected by the changed value.
_WATCHED = 2


@dataclass
class Constants:
    """Constant tensors of a training, determined in a run of its own if a run has frozen low-precision ones.

    Values alone do not suffice: an average of weights in bf16, whose updates all round away, is unchanged, too.
    """

    setup: Setup

    def __post_init__(self) -> None:
        """Defer the run until a frozen tensor is low-precision."""
        self._values: dict[str, torch.Tensor] | None = None

    def without(self, rounded: Iterable[Rounded], iteration: TrainingIteration) -> list[Rounded]:
        """Return those of ``rounded``, tensors of the model, that are trained or change."""
        tensors = _frozen(iteration.model)
        return [entry for entry in rounded if entry.name not in tensors or not self._is_constant(entry.name, iteration)]

    def _is_constant(self, name: str, iteration: TrainingIteration) -> bool:
        if self._values is None:
            self._values = _constants(self.setup, low=iteration.low)
        value = _frozen(iteration.model)[name]
        first = self._values.get(name)
        return first is not None and first.dtype == value.dtype and torch.equal(first, value)


def _frozen(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the floating tensors of the model that no gradient reaches, by name."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: value.detach() for name, value in named if value.is_floating_point() and not value.requires_grad}


def _constants(setup: Setup, *, low: bool) -> dict[str, torch.Tensor]:
    """Return the frozen tensors that the first steps neither write to nor replace, with their values."""
    values: dict[str, torch.Tensor] = {}
    written: set[str] = set()

    def train(iteration: TrainingIteration) -> None:
        before = _frozen(iteration.model)
        if iteration.index == 0:
            values.update({name: value.clone() for name, value in before.items()})
        with written_memory() as addresses:
            setup.train(iteration)
        for name, value in _frozen(iteration.model).items():
            address = _address(value)
            if name not in before or address != _address(before[name]) or address in addresses:
                written.add(name)

    run(replace(setup, train=train, steps=_WATCHED), low=low)
    return {name: value for name, value in values.items() if name not in written}


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
