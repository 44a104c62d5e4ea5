"""Planted defects of DistributedDataParallel and its communication hooks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from tests.planted.changes import rounded
from tests.planted.kernels import outside_of_regions
from tests.planted.table import defect, swap


@defect(
    "DDP sends its gradients in bf16 without a compression hook",
    caught_by="distributed/test_data_parallel.py::test_gradients_travel_in_float32[cpu-bf16-plain]",
)
def buckets_are_compressed_unasked() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def compress(state: Any, bucket: Any) -> Any:
        return default_hooks.bf16_compress_hook(state, bucket)

    compress.__annotations__ = default_hooks.bf16_compress_hook.__annotations__

    def with_hook(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.register_comm_hook(None, compress)

    original = swap("torch.nn.parallel.DistributedDataParallel", "__init__", with_hook)


@defect(
    "On rank 1 every autocast region is disabled",
    caught_by="distributed/test_data_parallel.py::test_every_rank_computes_in_the_region[cpu-bf16]",
)
def one_rank_leaves_the_region() -> None:
    def off(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> None:
        original(self, device_type, dtype, enabled=False, cache_enabled=cache_enabled)

    if os.environ.get("RANK") == "1":
        original = swap(torch.autocast, "__init__", off)


@defect(
    "DDP broadcasts buffers in bf16: running statistics lose bits in each forward pass",
    caught_by="distributed/test_data_parallel.py::test_every_bit_of_the_first_ranks_state_is_sent[cpu-bf16]",
    replaces="torch.nn.parallel.DistributedDataParallel._sync_buffers",
)
def buffers_are_sent_low(original: Any, self: Any) -> None:
    original(self)
    for buffer in self.module.buffers():
        if buffer.dtype is torch.float32:
            buffer.copy_(buffer.bfloat16())


@defect(
    "DDP with a static graph reduces gradients in its first step only",
    caught_by="distributed/test_data_parallel.py::test_a_training_is_that_of_one_process[cpu-bf16-static graph]",
)
def static_graphs_reduce_once() -> None:
    called: dict[int, int] = {}

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        called[id(self)] = called.get(id(self), 0) + 1
        if self.static_graph and called[id(self)] > 1:
            self.require_backward_grad_sync = False
        return original(self, *args, **kwargs)

    original = swap("torch.nn.parallel.DistributedDataParallel", "forward", forward)


@defect(
    "DDP's fp16 compression hook divides after the sum, which overflows",
    caught_by="distributed/test_compression.py::test_gradients_are_divided_before_they_are_summed[cpu-bf16-fp16]",
)
def compression_divides_after_the_sum() -> None:
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    def compress(state: Any, bucket: Any) -> Any:
        group = state if state is not None else dist.group.WORLD
        low = bucket.buffer().to(torch.float16)
        work: Any = dist.all_reduce(low, group=group, async_op=True)
        arrived = work.get_future()
        return arrived.then(
            lambda future: bucket.buffer().copy_(future.value()[0].float() / dist.get_world_size(group))
        )

    compress.__annotations__ = default_hooks.fp16_compress_hook.__annotations__
    swap(default_hooks, "fp16_compress_hook", compress)


@defect(
    "DDP's fp16 compression hook saturates: no scaler sees the overflow",
    caught_by="distributed/test_compression.py::test_what_overflows_in_a_hook_arrives_as_infinity[cpu-bf16]",
)
def compression_saturates() -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    before: Any = default_hooks.fp16_compress_hook
    largest = torch.finfo(torch.float16).max

    def compress(state: Any, bucket: Any) -> Any:
        bucket.buffer().clamp_(-largest, largest)
        return before(state, bucket)

    compress.__annotations__ = before.__annotations__
    swap(default_hooks, "fp16_compress_hook", compress)


def _after_powersgd(change: Callable[[Any, Any], Any]) -> None:
    """Let PowerSGD's hook return ``change(state, gradients)`` in place of its gradients."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    def changed(state: Any, bucket: Any) -> Any:
        return original(state, bucket).then(lambda future: change(state, future.value()))

    original: Any = powerSGD_hook.powerSGD_hook
    changed.__annotations__ = original.__annotations__
    swap(powerSGD_hook, "powerSGD_hook", changed)


@defect(
    "PowerSGD keeps its error feedback in bf16: small errors are never sent",
    caught_by="distributed/test_hooks.py::test_powersgd_keeps_what_it_leaves_out[cpu-bf16]",
)
def powersgd_forgets_small_errors() -> None:
    def round_errors(state: Any, gradients: Any) -> Any:
        for error in state.error_dict.values():
            error.copy_(rounded(error, torch.bfloat16))
        return gradients

    _after_powersgd(round_errors)


@defect(
    "PowerSGD rounds its decompressed gradients to bf16, in a float32 bucket",
    caught_by="distributed/test_hooks.py::test_a_known_gradient_arrives[cpu-bf16-PowerSGD]",
)
def powersgd_arrives_rounded() -> None:
    _after_powersgd(lambda _state, gradients: gradients.copy_(rounded(gradients, torch.bfloat16)))


@defect(
    "``bf16_compress_wrapper`` divides by the number of ranks again, after its hook",
    caught_by="distributed/test_hooks.py::test_a_known_gradient_arrives[cpu-bf16-bf16 around all-reduce]",
    replaces="torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_wrapper",
)
def wrapped_hooks_divide_again(original: Any, hook: Any) -> Any:
    import torch.distributed as dist

    wrapped = original(hook)

    def divided(state: Any, bucket: Any) -> Any:
        return wrapped(state, bucket).then(lambda future: future.value() / dist.get_world_size())

    divided.__annotations__ = wrapped.__annotations__
    return divided


@defect(
    "DDP leaves the autocast region in evaluation mode",
    caught_by="distributed/test_evaluation.py::test_ddp_evaluates_in_the_region[cpu-bf16]",
    replaces="torch.nn.parallel.DistributedDataParallel.forward",
)
def ddp_evaluates_outside_the_region(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    if self.training:
        return original(self, *args, **kwargs)
    with torch._C._DisableAutocast():
        return original(self, *args, **kwargs)


@defect(
    "DDP computes outside of the region within ``join``",
    caught_by="distributed/test_uneven.py::test_a_training_is_that_of_one_process[cpu-bf16-divided by all]",
    replaces="torch.nn.parallel.DistributedDataParallel.join",
)
def join_leaves_the_region(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    self.module.forward = outside_of_regions(self.module.forward)
    return original(self, *args, **kwargs)


@defect(
    "DDP sends the gradients of embeddings rounded to bfloat16",
    caught_by="distributed/test_zoo.py::test_a_step_is_that_of_one_process[cpu-bf16-decoder-ddp]",
    replaces="torch.nn.parallel.DistributedDataParallel.__init__",
)
def embeddings_of_ranks_get_rounded_gradients(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    for module in self.module.modules():
        if isinstance(module, torch.nn.Embedding):
            weight: Any = module.weight
            weight.register_hook(lambda gradient: rounded(gradient, torch.bfloat16))
