"""Copies between dtypes, as they reach the back end."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_amp.precision import dtype_name
from pytest_amp.torch_private.modes import dispatch_mode


@dataclass(frozen=True)
class Cast:
    """A copy of a tensor in another dtype.

    ``source`` and ``target`` are dtypes (``float32``), ``bytes`` is what is read and written, ``of`` the name of
    what was copied if it has one.
    """

    source: str
    target: str
    bytes: int
    of: str | None = None

    def __str__(self) -> str:
        """As messages show it: ``weight, float32 to bfloat16, 384 bytes``."""
        return f"{self.of or 'a tensor'}, {self.source} to {self.target}, {self.bytes} bytes"


@functools.cache
def _counter() -> Any:
    import torch

    mode: Any = dispatch_mode()

    class Counter(mode):  # type: ignore[misc]  # the base has no types
        """Writes down each copy to another dtype."""

        def __init__(self, names: Mapping[int, str]) -> None:
            super().__init__()
            self.names = names
            self.casts: list[Cast] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            name = func.name().partition(".")[0]
            if name in ("aten::_to_copy", "aten::copy_") and isinstance(result, torch.Tensor):
                self._note(args[0] if name == "aten::_to_copy" else args[1], result)
            return result

        def _note(self, source: Any, result: Any) -> None:
            if isinstance(source, torch.Tensor) and source.dtype != result.dtype:
                names = (dtype_name(source.dtype), dtype_name(result.dtype))
                size = source.numel() * (source.element_size() + result.element_size())
                self.casts.append(Cast(*names, size, self.names.get(id(source))))

    return Counter


@contextmanager
def counted_casts(names: Mapping[int, str]) -> Iterator[list[Cast]]:
    """The copies between dtypes inside the block, in order, in backward passes, too.

    ``names`` are what tensors are called, by ``id``. It sees ``aten::_to_copy``, which ``Tensor.to`` and
    autocast end in, and ``aten::copy_``; an operator that converts within its own kernel makes no copy. Raises
    PrivateApiGone without ``torch.utils._python_dispatch.TorchDispatchMode``.
    """
    with _counter()(names) as counter:
        yield counter.casts
