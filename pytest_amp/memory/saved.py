"""Memory that a forward pass saves for its backward pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from pytest_amp.memory.passes import Passes
from pytest_amp.numerics.step import Region
from pytest_amp.precision import dtype_name
from pytest_amp.torch_private import has_memory, live_storages

#: Name of the dtype of bytes that were counted as storages, which have none.
UNKNOWN_DTYPE = "unknown dtype"


@dataclass(frozen=True)
class Saved:
    """Number of saved storages other than those of parameters, buffers and the batch, and their bytes by dtype.

    A storage counts once and as a whole, even if it is saved several times or in part; its dtype is that of the first
    saved tensor. The dtype of all bytes is ``UNKNOWN_DTYPE`` for a model that computes gradients by ``torch.func``.
    """

    storages: int
    by_dtype: dict[str, int]

    @property
    def bytes(self) -> int:
        """The total number of bytes."""
        return sum(self.by_dtype.values())


def saved_bytes(passes: Passes, region: Region) -> Saved:
    """Measure what a forward pass inside ``region`` saves, by ``torch.autograd.graph.saved_tensors_hooks``.

    Recomputed tensors (``torch.utils.checkpoint``) are not saved; tensors that a custom function saves without
    ``save_for_backward`` are not counted. ``torch.func.grad``, and transforms that use it, do not run under these
    hooks: the measure is then every storage that the pass allocates and still holds at its end. The backward pass is
    run, too, so that the graph is freed.
    """
    try:
        return _count_with_hooks(passes, region)
    except RuntimeError as error:
        if "saved tensor hooks" not in str(error):
            raise
    return _count_live_storages(passes, region)


def _count_with_hooks(passes: Passes, region: Region) -> Saved:
    # Storages are held until the end of the pass, so that no address is used twice (a model may replace a buffer).
    storages = [tensor.untyped_storage() for tensor in passes.own().values() if _has_storage(tensor)]
    before = {storage.data_ptr(): storage for storage in storages}
    saved: dict[int, tuple[torch.UntypedStorage, str]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        for part in _parts(tensor):
            storage = part.untyped_storage()
            if storage.data_ptr() not in before and storage.nbytes():
                saved.setdefault(storage.data_ptr(), (storage, dtype_name(part.dtype)))
        return tensor.detach()  # an output that is saved itself would hold its own graph

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = passes.forward(region)
    by_dtype: Counter[str] = Counter()
    for storage, dtype in saved.values():
        by_dtype[dtype] += storage.nbytes()
    result = Saved(len(saved), dict(sorted(by_dtype.items())))
    saved.clear()
    passes.backward(loss)
    return result


def _count_live_storages(passes: Passes, region: Region) -> Saved:
    with live_storages(given=passes.own().values()) as alive:
        loss = passes.forward(region)
        sizes = [size for size in alive() if size]
    passes.backward(loss)
    return Saved(len(sizes), {UNKNOWN_DTYPE: sum(sizes)})


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and has_memory(tensor)


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that store the indices and values of a sparse tensor; a dense tensor itself."""
    if tensor.layout is torch.sparse_coo:
        return [tensor.coalesce().indices(), tensor.coalesce().values()]
    return [tensor] if _has_storage(tensor) else []
