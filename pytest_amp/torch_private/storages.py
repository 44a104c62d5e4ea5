"""The memory that operators allocate and that is still held."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_amp.torch_private.calls import call_overload
from pytest_amp.torch_private.modes import each_call
from pytest_amp.torch_private.trees import tree_leaves


def storage_address(tensor: Any) -> int | None:
    """Return the address of a tensor's storage, equal for tensors that share memory; None if it has no storage."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # a sparse tensor, or a wrapper
        return None


class _Tracker:
    """Weak references to the storages of results, and to those of arguments to tell the two apart."""

    def __init__(self) -> None:
        self.given: dict[int, weakref.ref[Any]] = {}
        self.made: dict[int, weakref.ref[Any]] = {}

    def run(self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make one call, and note its arguments and its result."""
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
        if known is None:  # new, or at the address of a freed storage
            self.given.pop(key, None)
            self.made.pop(key, None)
            into[key] = weakref.ref(storage)


@contextmanager
def live_storages(*, given: Iterable[Any] = ()) -> Iterator[Callable[[], list[int]]]:
    """Yield a function that returns the sizes in bytes of the storages allocated inside the block and still held.

    The sizes are sorted. ``given`` are tensors that exist before the block: cuDNN's recurrent layers make new tensors
    of the memory of their weights, which no operator has had as an argument. A storage keeps its Python object, and
    with it weak references, as long as C++ holds it. Raises PrivateApiGone without
    ``torch.utils._python_dispatch.TorchDispatchMode`` or ``torch.utils._pytree``.
    """

    def sizes_in_use() -> list[int]:
        storages = (reference() for reference in tracker.made.values())
        return sorted(storage.nbytes() for storage in storages if storage is not None)

    tracker = _Tracker()
    tracker.note(tracker.given, given)
    with each_call(tracker.run):
        yield sizes_in_use
