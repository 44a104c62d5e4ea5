"""The memory that operators allocate, and what of it is still held."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_amp.torch_private.calls import call_overload
from pytest_amp.torch_private.modes import each_call
from pytest_amp.torch_private.trees import tree_leaves


class _Tracker:
    """Keeps a weak reference to the storage of each result, and of each argument to tell the two apart."""

    def __init__(self) -> None:
        self.given: dict[int, weakref.ref[Any]] = {}
        self.made: dict[int, weakref.ref[Any]] = {}

    def run(self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of one call."""
        self.note(self.given, tree_leaves((args, kwargs)))
        result = call_overload(overload, args, kwargs)
        self.note(self.made, tree_leaves(result))
        return result

    def note(self, into: dict[int, weakref.ref[Any]], values: Iterable[Any]) -> None:
        """Remember the storages of the tensors among ``values``."""
        import torch

        for value in values:
            if isinstance(value, torch.Tensor):
                self._note_one(into, value)

    def _note_one(self, into: dict[int, weakref.ref[Any]], tensor: Any) -> None:
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # a tensor without storage: sparse, or a wrapper
            return
        key = storage._cdata
        known = next((d[key]() for d in (self.given, self.made) if key in d), None)
        if known is None:  # new, or at the address of one that is gone
            self.given.pop(key, None)
            self.made.pop(key, None)
            into[key] = weakref.ref(storage)


@contextmanager
def live_storages(*, given: Iterable[Any] = ()) -> Iterator[Callable[[], list[int]]]:
    """What operators have allocated inside the block and is still held: a function that gives their bytes.

    Sorted. ``given`` are tensors that were there before: cuDNN's recurrent layers make new ones of the memory of their
    weights, which no operator has had as an argument. A storage keeps its Python object, and with it weak references,
    as long as C++ holds it. Raises PrivateApiGone without ``torch.utils._python_dispatch.TorchDispatchMode`` or
    ``torch.utils._pytree``.
    """

    def held() -> list[int]:
        storages = (reference() for reference in tracker.made.values())
        return sorted(storage.nbytes() for storage in storages if storage is not None)

    tracker = _Tracker()
    tracker.note(tracker.given, given)
    with each_call(tracker.run):
        yield held
