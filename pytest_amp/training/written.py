"""Find the line that writes rounded values into a float32 parameter, or casts the parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pytest_amp.account import receive
from pytest_amp.cases import passes
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics.callers import calling_line
from pytest_amp.torch_private import writes_in_place
from pytest_amp.training.state import rounded_tensors
from pytest_amp.training.trajectory import Setup, TrainingIteration, run


def writer_of(setup: Setup, step: int, name: str, *, low: bool) -> str | None:
    """Return the last line in ``step`` after which the tensor ``name`` of the model has rounded values, as ``a.py:12``.

    The training is run again up to that step. Returns None if the values are rounded before the step, or if no call of
    torch's Python functions writes them.
    """
    lines: dict[str, str | None] = {}

    def train(iteration: TrainingIteration) -> object:
        tensor = _tensors(iteration.model).get(name)
        if iteration.index != step or tensor is None or _is_rounded(tensor):
            return setup.train(iteration)
        with _Writes(lambda: _tensors(iteration.model).get(name), lines):
            return setup.train(iteration)

    try:
        run(replace(setup, train=train, steps=max(step + 1, 2)), low=low)
    except AmpFailure as failure:
        receive(failure)
    except Exception as error:  # whatever the training step raises when it is run again
        if passes(error):
            raise
    return lines.get("last")


def _tensors(model: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _is_rounded(tensor: torch.Tensor) -> bool:
    return any(rounded_tensors([("", tensor.detach())]))


#: Functions that write without saying so in their names; backward() may run a hook that steps.
_WRITERS = frozenset({"__set__", "__setitem__", "backward"})


def _may_write(name: str, kwargs: Any) -> bool:
    """Return whether a function of this name may write to one of its arguments."""
    return name in _WRITERS or writes_in_place(name, kwargs or {})


class _Writes(TorchFunctionMode):
    """Mode that notes the line of each call that changes a tensor, while the tensor has rounded values after it."""

    def __init__(self, tensor: Callable[[], torch.Tensor | None], lines: dict[str, str | None]) -> None:
        super().__init__()
        self._tensor, self._lines, self._version = tensor, lines, self._state(tensor())
        self._makers: dict[int, str | None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        may_write = _may_write(getattr(func, "__name__", ""), kwargs)
        if may_write:
            self._note_assignment()
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.layout is torch.strided and not may_write:
            self._makers[result.data_ptr()] = calling_line()
        if not may_write:
            return result
        tensor = self._tensor()
        version = self._state(tensor)
        if version != self._version:
            self._version = version
            self._lines["last"] = calling_line() if tensor is not None and _is_rounded(tensor) else None
        return result

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._note_assignment()

    def _note_assignment(self) -> None:
        """Note the line that computed another tensor, if an assignment, which is no call of torch, put it there."""
        tensor = self._tensor()
        version = self._state(tensor)
        if version != self._version:
            self._version = version
            is_rounded = tensor is not None and _is_rounded(tensor)
            self._lines["last"] = self._makers.get(tensor.data_ptr()) if is_rounded and tensor is not None else None

    @staticmethod
    def _state(tensor: torch.Tensor | None) -> tuple[object, ...]:
        """Return what changes with each write: identity, memory, dtype and a sum of the tensor's values."""
        if tensor is None:
            return ()
        values = tensor.detach()
        return id(tensor), values.data_ptr(), values.dtype, repr(float(values.abs().double().sum()))
