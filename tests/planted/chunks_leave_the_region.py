"""``torch.func.vmap`` in chunks computes below autocast; as a whole it is in the region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_func: Any = torch.func
_vmap = _func.vmap


def _vmap_in_chunks(
    function: Callable[..., Any], *arguments: Any, chunk_size: int | None = None, **keywords: Any
) -> Any:
    mapped = _vmap(function, *arguments, chunk_size=chunk_size, **keywords)

    def outside(*inputs: Any, **more: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return mapped(*inputs, **more)

    return mapped if chunk_size is None else outside


_func.vmap = _vmap_in_chunks
