"""Planted defects of ranks that step together: scaling, clipping, accumulation and collectives."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import Any

import torch

from tests.planted.table import defect, swap


@defect(
    "On rank 1 GradScaler steps although it found an inf",
    caught_by="distributed/test_scaler.py::test_ddp_spreads_an_overflow_to_all_ranks[cpu-bf16]",
)
def one_rank_steps_on_inf() -> None:
    def steps(self: Any, optimizer: Any, optimizer_state: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    if os.environ.get("RANK") == "1":
        torch.amp.GradScaler._maybe_opt_step = steps  # type: ignore[method-assign]


@defect(
    "ShardedGradScaler does not share found_inf with the other ranks",
    caught_by="distributed/test_scaler.py::test_an_overflow_in_one_shard_is_skipped_by_all[cpu-bf16-none-rank 1-inf]",
)
def found_inf_stays_on_its_rank() -> None:
    swap("torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler", "unscale_", torch.amp.GradScaler.unscale_)


@defect(
    "ShardedGradScaler takes rank 0's found_inf for that of all ranks",
    caught_by="distributed/test_scaler.py::test_an_overflow_in_one_shard_is_skipped_by_all[cpu-bf16-none-rank 1-inf]",
)
def found_inf_of_the_first_rank_counts() -> None:
    from torch.distributed.fsdp import sharded_grad_scaler

    module: Any = sharded_grad_scaler

    class FromTheFirst:
        """``torch.distributed``, whose reduction is what the first rank has."""

        def __init__(self, real: Any) -> None:
            self.real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

        def all_reduce(self, tensor: Any, **keywords: Any) -> Any:
            """Return the tensor of rank 0, which is no sum."""
            return self.real.broadcast(tensor, 0, **keywords)

    swap(sharded_grad_scaler, "dist", FromTheFirst(module.dist))


@defect(
    "A scaler that is loaded on rank 1 loses its growth tracker: it grows later than that of rank 0",
    caught_by="distributed/test_scaler.py::test_every_rank_has_the_same_scale[cpu-bf16-none]",
    replaces="torch.amp.GradScaler.load_state_dict",
)
def loaded_scalers_grow_alone(original: Any, self: Any, state: Any) -> None:
    original(self, {**state, "_growth_tracker": 0} if os.environ.get("RANK") == "1" else state)


@defect(
    "FSDP1 clips by the largest gradient of a rank's own shard",
    caught_by="distributed/test_clipping.py::test_clipping_is_by_the_norm_of_all_shards[cpu-bf16-inf-FSDP1]",
)
def largest_of_shards_is_the_first_ranks() -> None:
    import torch.distributed as dist

    reduce: Any = dist.all_reduce

    def clip(self: Any, max_norm: float, norm_type: float = 2.0) -> Any:
        def reduce_but_maxima(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            return None if kwargs.get("op") == dist.ReduceOp.MAX else reduce(tensor, *args, **kwargs)

        if math.isinf(norm_type):
            dist.all_reduce = reduce_but_maxima
        try:
            return original(self, max_norm, norm_type)
        finally:
            dist.all_reduce = reduce

    original = swap("torch.distributed.fsdp.FullyShardedDataParallel", "clip_grad_norm_", clip)


@defect(
    "``clip_grad_norm_`` takes the norm of a rank's own shards for the total norm",
    caught_by="distributed/test_clipping.py::test_clipping_is_by_the_norm_of_all_shards[cpu-bf16-2-FSDP2]",
    replaces="torch.nn.utils.clip_grad._get_total_norm",
)
def clipping_knows_its_own_shard(original: Any, tensors: Any, *arguments: Any, **keywords: Any) -> Any:
    from torch.distributed.tensor import DTensor, Replicate

    shards = [x.to_local() if isinstance(x, DTensor) else x for x in tensors]
    norm = original(shards, *arguments, **keywords)
    meshes = [x.device_mesh for x in tensors if isinstance(x, DTensor)]
    return DTensor.from_local(norm, meshes[0], [Replicate()] * meshes[0].ndim) if meshes else norm


@defect(
    "``get_model_state_dict`` rounds the weights that it gathers to bfloat16",
    caught_by=(
        "distributed/test_clipping.py::test_a_whole_state_dict_has_the_bits_of_the_shards[cpu-bf16-outside-FSDP2]"
    ),
    replaces="torch.distributed.checkpoint.state_dict.get_model_state_dict",
)
def whole_states_are_low(original: Any, *arguments: Any, **keywords: Any) -> Any:
    states = original(*arguments, **keywords)
    return {
        name: value.bfloat16().to(value.dtype) if value.is_floating_point() else value for name, value in states.items()
    }


@defect(
    "``DistributedDataParallel.no_sync`` has no effect: each backward pass reduces",
    caught_by="distributed/test_accumulation.py::test_micro_batches_add_up[cpu-bf16-DDP-after the last]",
)
def no_sync_is_ignored() -> None:
    swap("torch.nn.parallel.DistributedDataParallel", "no_sync", lambda self: contextlib.nullcontext())


@defect(
    "FSDP2 accumulates micro-batches in the parameters' dtype, and casts at the reduction",
    caught_by=(
        "distributed/test_accumulation.py::"
        "test_micro_batches_add_up[cpu-bf16-FSDP2, low, reduced in float32-after the last]"
    ),
)
def shards_add_up_in_low() -> None:
    def as_it_is(_self: Any) -> None:
        return

    swap("torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam", "to_accumulated_grad_if_needed", as_it_is)


@defect(
    "FSDP1 rounds accumulated gradients to bf16 at the end of ``no_sync``",
    caught_by="distributed/test_accumulation.py::test_micro_batches_add_up[cpu-bf16-FSDP1, autocast-after the last]",
)
def no_sync_rounds_its_sums() -> None:
    @contextlib.contextmanager
    def rounding(self: Any) -> Iterator[None]:
        with original(self):
            yield
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.copy_(parameter.grad.to(torch.bfloat16))

    original = swap("torch.distributed.fsdp.FullyShardedDataParallel", "no_sync", rounding)


@defect(
    "``dist.all_gather`` rounds float32 to the autocast dtype in a region",
    caught_by="distributed/test_collectives.py::test_every_bit_arrives[cpu-bf16]",
    replaces="torch.distributed.all_gather",
)
def collectives_round_in_a_region(original: Any, tensors: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind) and tensor.dtype is torch.float32:
        tensor = tensor.to(torch.get_autocast_dtype(kind)).to(tensor.dtype)
    return original(tensors, tensor, *args, **kwargs)


@defect(
    "``all_reduce`` of ``torch.distributed.nn`` rounds its gradients to bf16",
    caught_by="distributed/test_collectives.py::test_gradients_go_back_through_them[cpu-bf16]",
    replaces="torch.distributed.nn.functional.all_reduce",
)
def gradients_of_gathered_are_rounded(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    tensor = tensor.clone()
    tensor.register_hook(lambda gradient: gradient.to(torch.bfloat16).to(gradient.dtype))
    return original(tensor, *args, **kwargs)
