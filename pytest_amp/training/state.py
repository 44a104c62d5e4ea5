"""Check for float32 state in a training: parameters, and floating or complex tensors of the optimizer's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.optim.swa_utils import AveragedModel

from pytest_amp.cases import named_tensors
from pytest_amp.numerics.errors import hollow_dtype, is_inexact
from pytest_amp.precision import dtype_name

_LOW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Rounded:
    """Tensor that is not float32: ``dtype`` is its own, or the low one in which all its values are representable."""

    name: str
    dtype: torch.dtype
    hollow: bool

    def __str__(self) -> str:
        """Return the tensor and its dtype in words."""
        low = dtype_name(self.dtype)
        return f"{self.name} is float32 with values of {low} only" if self.hollow else f"{self.name} is {low}"


def rounded_parameters(model: torch.nn.Module) -> list[Rounded]:
    """Return parameters and floating buffers that are low-precision, or were rounded since they were computed."""
    return list(rounded_tensors([*model.named_parameters(), *model.named_buffers()]))


def rounded_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, hollow: bool = True) -> list[Rounded]:
    """Return tensors of the optimizer's state that are low-precision, or with ``hollow`` were rounded since computed.

    After its first step the momentum of SGD is the gradient itself, which comes from a low-precision product.
    """
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    tensors = [
        (f"{entry} of {names.get(parameter, 'a parameter')}", value)
        for parameter, state in optimizer.state.items()
        for entry, value in state.items()
        if isinstance(value, torch.Tensor)
    ]
    return [entry for entry in rounded_tensors(tensors) if hollow or not entry.hollow]


def rounded_kept(retained: Mapping[str, object]) -> list[Rounded]:
    """Return the low-precision tensors that a training step keeps: averages of weights, sums of metrics.

    This includes those of a ``torch.optim.swa_utils.AveragedModel``. For other modules see ``UpdatedModules``.
    """
    tensors: list[tuple[str, torch.Tensor]] = []
    for name, value in retained.items():
        named = value.named_parameters() if isinstance(value, AveragedModel) else named_tensors(value)
        tensors += [(f"kept[{name!r}]{f'.{part}' if part else ''}", tensor) for part, tensor in named]
    return [entry for entry in rounded_tensors(tensors) if not entry.hollow]


class UpdatedModules:
    """Modules that a training step keeps, apart from AveragedModel: their low-precision tensors that steps update.

    A module that no step changes, or that each step overwrites with the weights of the model, may be low-precision: a
    frozen teacher, a copy for inference. An average may not.
    """

    def __init__(self) -> None:
        """Start without a step to compare with."""
        self._before: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def rounded(self, retained: Mapping[str, object], model: torch.nn.Module) -> list[Rounded]:
        """Return the tensors that changed since the last call, in place, to other values than those of ``model``."""
        weights = {name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())}
        before, self._before, updated = self._before, {}, []
        for name, module in retained.items():
            if not isinstance(module, torch.nn.Module) or isinstance(module, AveragedModel):
                continue
            for part, tensor in (*module.named_parameters(), *module.named_buffers()):
                if not _is_low(tensor):
                    continue
                key = f"kept[{name!r}].{part}"
                self._before[key] = tensor, tensor.detach().clone()
                same, values = before.get(key, (None, tensor))
                if same is tensor and not torch.equal(tensor, values) and not _is_copy(tensor, weights.get(part)):
                    updated.append((key, tensor.detach()))
        return list(rounded_tensors(updated))


def _is_copy(tensor: torch.Tensor, weight: torch.Tensor | None) -> bool:
    return weight is not None and weight.shape == tensor.shape and torch.equal(weight.to(tensor.dtype), tensor)


def _is_low(tensor: torch.Tensor) -> bool:
    return is_inexact(tensor) and tensor.dtype.to_real().itemsize < torch.float32.itemsize


def rounded_tensors(tensors: list[tuple[str, torch.Tensor]]) -> Iterator[Rounded]:
    """Yield the named tensors that are low-precision, or whose values all are representable in a low dtype."""
    for name, tensor in tensors:
        if not is_inexact(tensor):
            continue
        if _is_low(tensor):
            yield Rounded(name, tensor.dtype, hollow=False)
            continue
        low = hollow_dtype(tensor, _LOW)
        if low is not None:
            yield Rounded(name, low, hollow=True)
