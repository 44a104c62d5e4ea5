"""Functions that write in place, and the memory that operators write to."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

from pytest_amp.torch_private.dispatcher import arguments_of
from pytest_amp.torch_private.modes import each_call
from pytest_amp.torch_private.virtual import written_arguments


def writes_in_place(name: str, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a torch function writes to an argument, by its ``__name__`` and keyword arguments.

    ``__setitem__`` and setters of attributes write as well, but their names do not say so.
    """
    return "out" in kwargs or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")


def written_tensors(overload: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the tensors among the arguments of a call to which it writes, by the schema of its overload."""
    import torch

    positions = _written_positions(overload)
    values = [args[index] if index < len(args) else kwargs.get(name) for index, name in positions]
    leaves = chain.from_iterable(value if isinstance(value, (list, tuple)) else (value,) for value in values)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


@functools.cache
def _written_positions(overload: Any) -> tuple[tuple[int, str], ...]:
    """Return the positions and names of the arguments that an overload writes to: tensors, or lists of tensors."""
    written = written_arguments(overload)
    return tuple((index, name) for index, name in enumerate(arguments_of(overload)) if name in written)


@contextmanager
def written_memory() -> Iterator[set[int]]:
    """Collect the addresses of the storages that operators write to in the block, through ``tensor.data``, too.

    Raises PrivateApiGone without ``torch.utils._python_dispatch.TorchDispatchMode``, ``torch.utils._pytree`` or the
    schemas of operators.
    """
    import torch

    addresses: set[int] = set()

    def run(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = overload(*args, **kwargs)
        for tensor in written_tensors(overload, args, kwargs):
            if tensor.layout is torch.strided:
                addresses.add(tensor.untyped_storage().data_ptr())
        return result

    with each_call(run):
        yield addresses
