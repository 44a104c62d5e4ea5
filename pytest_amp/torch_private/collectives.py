"""Recording of collective operators and the dtypes of their tensors, as sent between processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pytest_amp.precision import dtype_name
from pytest_amp.torch_private.gone import PrivateApiGone
from pytest_amp.torch_private.modes import each_call

#: Namespaces of torch's collectives: of process groups, and of the functional collectives that DTensor calls.
NAMESPACES = ("c10d", "_c10d_functional")
#: Operators of these namespaces that send nothing.
_BOOKKEEPING = ("wait_tensor", "wrap_tensor")


@dataclass(frozen=True)
class Collective:
    """One call: the operator's name without its namespace (``allreduce_``), and the floating dtypes of its tensors."""

    operator: str
    dtypes: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Return ``all_reduce``, ``all_gather`` or ``reduce_scatter``; for any other collective the operator's name."""
        plain = self.operator.replace("_", "")
        kinds = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}
        return next((kind for start, kind in kinds.items() if plain.startswith(start)), self.operator)


@contextlib.contextmanager
def recorded_collectives() -> Iterator[list[Collective]]:
    """Record the collectives on floating tensors inside the block, in order, including those of backward passes.

    Raises PrivateApiGone without ``TorchDispatchMode``, through which process groups pass their calls.
    """
    calls: list[Collective] = []

    def recorded(overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if overload.namespace in NAMESPACES:
            dtypes = dict.fromkeys(_dtypes((args, tuple(kwargs.values()))))
            name = overload.name().partition("::")[2].partition(".")[0]
            if dtypes and not any(word in name for word in _BOOKKEEPING):
                calls.append(Collective(name, tuple(dtypes)))
        return overload(*args, **kwargs)

    with each_call(recorded):
        yield calls


@contextlib.contextmanager
def small_first_bucket(limit: int) -> Iterator[None]:
    """Limit the first bucket of a DDP constructed inside the block to ``limit`` bytes.

    With a ``bucket_cap_mb`` as small, every bucket has at most ``limit`` bytes. Without this limit, a small model fits
    into the first bucket, whatever ``bucket_cap_mb`` is. Raises PrivateApiGone without
    ``torch.distributed._DEFAULT_FIRST_BUCKET_BYTES``.
    """
    from torch import distributed

    dist: Any = distributed
    if not hasattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES"):
        raise PrivateApiGone("torch.distributed._DEFAULT_FIRST_BUCKET_BYTES")
    before = dist._DEFAULT_FIRST_BUCKET_BYTES
    dist._DEFAULT_FIRST_BUCKET_BYTES = limit
    try:
        yield
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = before


def _dtypes(value: Any) -> list[str]:
    import torch

    if isinstance(value, torch.Tensor):
        return [dtype_name(value.dtype)] if value.is_floating_point() else []
    if isinstance(value, (list, tuple)):
        return [dtype for item in value for dtype in _dtypes(item)]
    return []
