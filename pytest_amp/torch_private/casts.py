"""Copies between dtypes that reach the back end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_amp.precision import dtype_name
from pytest_amp.torch_private.calls import call_overload
from pytest_amp.torch_private.modes import each_call


@dataclass(frozen=True)
class Cast:
    """A copy of a tensor in another dtype.

    ``source`` and ``target`` are names of dtypes (``float32``), ``bytes`` is the number of bytes read and written,
    ``of`` the name of the copied tensor, if it has one.
    """

    source: str
    target: str
    bytes: int
    of: str | None = None

    def __str__(self) -> str:
        """Return the text of messages: ``weight, float32 to bfloat16, 384 bytes``."""
        return f"{self.of or 'a tensor'}, {self.source} to {self.target}, {self.bytes} bytes"


@contextmanager
def counted_casts(names: Mapping[int, str]) -> Iterator[list[Cast]]:
    """Record the copies between dtypes inside the block, in order, including those of backward passes.

    ``names`` maps the ``id`` of a tensor to its name. Recorded operators are ``aten::_to_copy``, which ``Tensor.to``
    and autocast call, and ``aten::copy_``; an operator that converts within its own kernel makes no copy. Raises
    PrivateApiGone without ``torch.utils._python_dispatch.TorchDispatchMode``.
    """
    import torch

    casts: list[Cast] = []

    def counted(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = call_overload(overload, args, kwargs)
        place = {"aten::_to_copy": 0, "aten::copy_": 1}.get(overload.name().partition(".")[0])
        source = None if place is None else args[place]
        if isinstance(source, torch.Tensor) and isinstance(result, torch.Tensor) and source.dtype != result.dtype:
            size = source.numel() * (source.element_size() + result.element_size())
            casts.append(Cast(dtype_name(source.dtype), dtype_name(result.dtype), size, names.get(id(source))))
        return result

    with each_call(counted):
        yield casts
