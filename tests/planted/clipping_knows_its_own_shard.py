"""``clip_grad_norm_`` takes the norm of a rank's own shards for that of all."""

from __future__ import annotations

from typing import Any

from torch.nn.utils import clip_grad

_clip: Any = clip_grad
_total = _clip._get_total_norm


def _local(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
    from torch.distributed.tensor import DTensor, Replicate

    own = [x.to_local() if isinstance(x, DTensor) else x for x in tensors]
    norm = _total(own, *arguments, **keywords)
    meshes = [x.device_mesh for x in tensors if isinstance(x, DTensor)]
    return DTensor.from_local(norm, meshes[0], [Replicate()] * meshes[0].ndim) if meshes else norm


_clip._get_total_norm = _local
