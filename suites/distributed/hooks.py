"""DDP's communication hooks by name, with the state that each requires."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_amp.precision import dtype_name

Hook = Callable[[Any, Any], Any]


def registered(name: str) -> tuple[Any, Hook]:
    """Return state and hook, as ``register_comm_hook`` takes them.

    Each hook is called by a wrapper function: DDP requires NCCL for its own bf16 hooks, which it recognises by name.
    """
    state, hook = _MADE[name]() if name in _MADE else (None, _compressing(name))

    def call(state: Any, bucket: Any) -> Any:
        return hook(state, bucket)

    call.__annotations__ = hook.__annotations__
    return state, call


def _default(name: str) -> Any:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    return getattr(default_hooks, name)


def _compressing(name: str) -> Hook:
    hook: Hook = _default(f"{name}_compress_hook")
    return hook


def _around(dtype: str, inner: str) -> tuple[Any, Hook]:
    """Return a compression wrapper around another hook."""
    state, hook = _MADE[inner]()
    wrapped: Hook = _default(f"{dtype}_compress_wrapper")(hook)
    return state, wrapped


def _all_reduce() -> tuple[Any, Hook]:
    import torch.distributed as dist

    return dist.group.WORLD, _default("allreduce_hook")


def _local() -> tuple[Any, Hook]:
    """Return local SGD that reduces two of three iterations; subgroups would be those of one machine."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook

    local: Any = post_localSGD_hook  # has no types

    keywords: Any = {"start_localSGD_iter": 2, "post_local_gradient_allreduce": False}
    return local.PostLocalSGDState(None, dist.group.WORLD, **keywords), local.post_localSGD_hook


def _power(*, batched: bool) -> tuple[Any, Hook]:
    """Return PowerSGD of rank one, which reduces the first two iterations uncompressed."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    state = power.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    return state, power.batched_powerSGD_hook if batched else power.powerSGD_hook


_MADE: dict[str, Callable[[], tuple[Any, Hook]]] = {
    "all-reduce": _all_reduce,
    "local SGD": _local,
    "PowerSGD": lambda: _power(batched=False),
    "batched PowerSGD": lambda: _power(batched=True),
    "fp16 around all-reduce": lambda: _around("fp16", "all-reduce"),
    "bf16 around all-reduce": lambda: _around("bf16", "all-reduce"),
    "fp16 around PowerSGD": lambda: _around("fp16", "PowerSGD"),
    "bf16 around PowerSGD": lambda: _around("bf16", "PowerSGD"),
}


def dtypes_of_state(state: Any) -> dict[str, str]:
    """Return the dtypes of the tensors that a state keeps between iterations."""
    memories = {name: getattr(state, name, {}) for name in ("error_dict", "p_memory_dict", "q_memory_dict")}
    return {name: dtype_name(memory[0].dtype) for name, memory in memories.items() if memory}
