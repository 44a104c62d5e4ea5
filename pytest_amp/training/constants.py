"""Constants of a training run, which may have a low dtype: frozen parameters, and buffers that are never written."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from pytest_amp.torch_private import written_memory
from pytest_amp.training.trajectory import Setup, TrainingIteration, run

#: Number of steps whose operators are watched for writes. A write in a later step is detected by the changed value.
_WATCHED = 2


@dataclass
class Constants:
    """Constant tensors of a training run, determined by a separate run once a frozen tensor is low-precision.

    Comparing values does not suffice: a bf16 average of weights whose updates all round away does not change, either.
    """

    setup: Setup

    def __post_init__(self) -> None:
        """Defer the separate run until a frozen tensor is low-precision."""
        self._values: dict[str, torch.Tensor] | None = None

    def has(self, name: str, iteration: TrainingIteration) -> bool:
        """Return whether the frozen tensor ``name`` is a constant."""
        if self._values is None:
            self._values = _constants(self.setup, low=iteration.low)
        value = frozen_tensors(iteration.model)[name]
        first = self._values.get(name)
        return first is not None and first.dtype == value.dtype and torch.equal(first, value)


def frozen_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the model's floating-point parameters and buffers that no optimizer trains, by name.

    They do not require a gradient, or the forward pass has computed them, as that of a quantized layer its integers.
    """
    named = [*model.named_parameters(), *model.named_buffers()]
    trained = {name for name, value in named if value.requires_grad and value.is_leaf}
    return {name: value.detach() for name, value in named if value.is_floating_point() and name not in trained}


def _constants(setup: Setup, *, low: bool) -> dict[str, torch.Tensor]:
    """Return the values of the frozen tensors that the first steps neither write to nor replace, by name.

    The first step may cast a tensor, as a model does with a table of positions that takes the dtype of its activations.
    """
    values: dict[str, torch.Tensor] = {}
    written: set[str] = set()
    models: list[torch.nn.Module] = []

    def train(iteration: TrainingIteration) -> None:
        before, is_first = frozen_tensors(iteration.model), models[-1:] != [iteration.model]
        if is_first:  # also in a run that begins again at a lower scale
            models.append(iteration.model)
            values.clear()
            written.clear()
            values.update({name: value.clone() for name, value in before.items()})
        with written_memory() as addresses:
            setup.train(iteration)
        for name, value in frozen_tensors(iteration.model).items():
            address = _address(value)
            if is_first and name in values and _is_cast(value, values[name]):
                values[name] = value.clone()
            elif name not in before or address != _address(before[name]) or address in addresses:
                written.add(name)

    run(replace(setup, train=train, steps=_WATCHED), low=low)
    return {name: value for name, value in values.items() if name not in written}


def _is_cast(value: torch.Tensor, first: torch.Tensor) -> bool:
    return value.dtype != first.dtype and value.shape == first.shape and torch.equal(first.to(value.dtype), value)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
