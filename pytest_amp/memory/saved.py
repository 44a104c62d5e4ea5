"""What a forward pass keeps for its backward pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from pytest_amp.memory.passes import Passes
from pytest_amp.numerics.step import Region
from pytest_amp.precision import dtype_name


@dataclass(frozen=True)
class Saved:
    """What is kept beside parameters, buffers and the batch: the number of storages, and their bytes by dtype.

    A storage counts once however often it is kept, whole even where a part is; its dtype is that in which it is
    kept first.
    """

    storages: int
    by_dtype: dict[str, int]

    @property
    def bytes(self) -> int:
        """All of them."""
        return sum(self.by_dtype.values())


def saved_bytes(passes: Passes, region: Region) -> Saved:
    """What the forward pass of ``passes`` within ``region`` keeps, by ``torch.autograd.graph.saved_tensors_hooks``.

    What is recomputed (``torch.utils.checkpoint``) is not kept; what a custom function keeps outside of
    ``save_for_backward`` is not seen. The backward pass is run, too, so that the graph is not left behind.
    """
    own = {_storage(tensor).data_ptr() for tensor in passes.own().values() if _has_storage(tensor)}
    # Kept alive here until the pass is over: an address is not used twice.
    kept: dict[int, tuple[torch.UntypedStorage, str]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        for part in _parts(tensor):
            storage = _storage(part)
            if storage.data_ptr() not in own and storage.nbytes():
                kept.setdefault(storage.data_ptr(), (storage, dtype_name(part.dtype)))
        return tensor.detach()  # an output that is kept as itself would keep its own graph

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = passes.forward(region)
    by_dtype: Counter[str] = Counter()
    for storage, dtype in kept.values():
        by_dtype[dtype] += storage.nbytes()
    found = Saved(len(kept), dict(sorted(by_dtype.items())))
    kept.clear()
    passes.backward(loss)
    return found


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors that hold the numbers of a sparse one; a dense one itself."""
    if tensor.layout is torch.sparse_coo:
        return [tensor.coalesce().indices(), tensor.coalesce().values()]
    return [tensor] if _has_storage(tensor) else []


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()
