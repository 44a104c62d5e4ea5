"""Planted defects of models, states and losses that are split over ranks."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tests.planted.kernels import outside_of_regions
from tests.planted.table import defect, swap


@defect(
    "FSDP2 reduces gradients in bf16 where its policy asks for float32",
    caught_by="distributed/test_fully_shard.py::test_what_is_sent[cpu-bf16-low, reduced in float32]",
    replaces="torch.distributed.fsdp.MixedPrecisionPolicy.__init__",
)
def reduces_in_bf16(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    if self.reduce_dtype is torch.float32:
        object.__setattr__(self, "reduce_dtype", torch.bfloat16)


@defect(
    "FSDP2 ignores ``output_dtype`` if that is float32",
    caught_by=(
        "distributed/test_fully_shard.py::"
        "test_what_layers_see_and_what_is_returned[cpu-bf16-low, reduced in float32, output float32]"
    ),
    replaces="torch.distributed.fsdp.MixedPrecisionPolicy.__init__",
)
def output_dtype_is_ignored(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    if self.output_dtype is torch.float32:
        object.__setattr__(self, "output_dtype", None)


@defect(
    "FSDP2 casts the weights to bf16 before it shards them: there are no float32 masters",
    caught_by="distributed/test_fully_shard.py::test_a_training_keeps_float32[cpu-bf16-low, reduced in float32]",
    replaces="torch.distributed.fsdp.fully_shard",
)
def shards_are_kept_in_bf16(original: Any, module: Any, **kwargs: Any) -> Any:
    return original(module.to(torch.bfloat16), **kwargs)


@defect(
    "FSDP2 casts buffers to ``param_dtype``",
    caught_by="distributed/test_fully_shard.py::test_buffers_stay_as_they_are[cpu-bf16]",
    replaces="torch.distributed.fsdp.fully_shard",
)
def tables_of_shards_are_cast(original: Any, module: Any, **kwargs: Any) -> Any:
    policy = kwargs.get("mp_policy")
    if policy is not None and policy.param_dtype is not None:
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.dtype is torch.float32:
                setattr(module, name, buffer.to(policy.param_dtype))
    return original(module, **kwargs)


@defect(
    "FSDP1 ignores ``reduce_dtype`` and reduces gradients in ``param_dtype``",
    caught_by="distributed/test_fsdp.py::test_what_is_sent_and_computed[cpu-bf16-low, reduced in float32]",
    replaces="torch.distributed.fsdp.MixedPrecision.__init__",
)
def one_unit_reduces_in_low(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    if self.param_dtype is not None:
        object.__setattr__(self, "reduce_dtype", self.param_dtype)


@defect(
    "FSDP2 casts positional inputs, and not keyword inputs",
    caught_by="distributed/test_inputs.py::test_inputs_are_cast_wherever_they_are[cpu-bf16-root-FSDP2]",
    replaces="torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState._pre_forward",
)
def keyword_inputs_stay_wide(original: Any, self: Any, module: Any, args: Any, kwargs: Any) -> Any:
    cast, _ = original(self, module, args, kwargs)
    return cast, kwargs


@defect(
    "FSDP1 does not cast input tensors in lists",
    caught_by="distributed/test_inputs.py::test_inputs_are_cast_wherever_they_are[cpu-bf16-root-FSDP1]",
    replaces="torch.distributed.fsdp._runtime_utils._cast_forward_inputs",
)
def lists_of_inputs_stay_wide(original: Any, dtype: Any, *args: Any, **kwargs: Any) -> Any:
    cast, by_name = original(dtype, *args, **kwargs)
    inputs = tuple(old if isinstance(old, list) else new for old, new in zip(args, cast, strict=True))
    return inputs, by_name


@defect(
    "FSDP2 does not cast output tensors in containers to ``output_dtype``",
    caught_by="distributed/test_inputs.py::test_outputs_are_cast_wherever_they_are[cpu-bf16-root]",
    replaces="torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState._post_forward",
)
def outputs_in_containers_stay_low(original: Any, self: Any, module: Any, inputs: Any, output: Any) -> Any:
    policy = self._mp_policy
    if not isinstance(output, torch.Tensor):
        self._mp_policy = type(policy)(policy.param_dtype, policy.reduce_dtype)
    try:
        return original(self, module, inputs, output)
    finally:
        self._mp_policy = policy


@defect(
    "A method that is registered with FSDP2 does not cast its inputs",
    caught_by="distributed/test_inputs.py::test_inputs_are_cast_wherever_they_are[cpu-bf16-root-FSDP2]",
    replaces="torch.distributed.fsdp.register_fsdp_forward_method",
)
def registered_methods_take_wide_inputs(original: Any, module: Any, name: str) -> None:
    original(module, name)
    registered = getattr(module, name)

    @functools.wraps(registered)
    def call(*args: Any, **kwargs: Any) -> Any:
        state = module._get_fsdp_state()
        policy = state._mp_policy
        state._mp_policy = type(policy)(policy.param_dtype, policy.reduce_dtype, cast_forward_inputs=False)
        try:
            return registered(*args, **kwargs)
        finally:
            state._mp_policy = policy

    setattr(module, name, call)


@defect(
    "FSDP2 over replicas of shards averages over the replicas in bf16, whatever ``reduce_dtype`` says",
    caught_by=(
        "distributed/test_variations.py::"
        "test_gradients_are_those_of_one_process[cpu-bf16-FSDP2, copies, low, reduced in float32]"
    ),
    replaces="torch.distributed.all_reduce",
)
def copies_of_shards_are_averaged_low(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(tensor, *args, **kwargs)
    if kwargs.get("op") is not None and tensor.dtype is torch.float32 and tensor.dim() == 1:
        tensor.copy_(tensor.to(torch.bfloat16))
    return result


@defect(
    "FSDP1 without sharding rounds reduced gradients to bf16, whatever ``reduce_dtype`` says",
    caught_by=(
        "distributed/test_variations.py::"
        "test_gradients_are_those_of_one_process[cpu-bf16-FSDP1, not split, low, reduced in float32]"
    ),
    replaces="torch.distributed.fsdp._runtime_utils._reduce_grad_no_shard",
)
def unsplit_weights_reduce_in_low(original: Any, state: Any, handle: Any) -> None:
    original(state, handle)
    gradient = handle.flat_param.grad
    gradient.copy_(gradient.to(torch.bfloat16))


@defect(
    "ZeroRedundancyOptimizer rounds the updated weights to bf16 before it sends them",
    caught_by="distributed/test_optimizers.py::test_a_state_in_parts_is_that_of_one_process[cpu-bf16-parameters-clean]",
    replaces="torch.distributed.optim.ZeroRedundancyOptimizer._sync_params",
)
def weights_of_other_ranks_are_low(original: Any, self: Any) -> Any:
    with torch.no_grad():
        for group in self.optim.param_groups:
            for parameter in group["params"]:
                parameter.copy_(parameter.to(torch.bfloat16))
    return original(self)


@defect(
    "ZeroRedundancyOptimizer rounds the moments to bf16 when it consolidates its state",
    caught_by="distributed/test_optimizers.py::test_a_state_in_parts_is_that_of_one_process[cpu-bf16-parameters-clean]",
    replaces="torch.distributed.optim.ZeroRedundancyOptimizer.consolidate_state_dict",
)
def states_of_other_ranks_are_low(original: Any, self: Any, to: int = 0) -> None:
    for state in self.optim.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor) and value.dim():
                value.copy_(value.to(torch.bfloat16))
    original(self, to)


@defect(
    "Averages of models over ranks are rounded to the autocast dtype in a region",
    caught_by="distributed/test_optimizers.py::test_weights_are_averaged_in_float32[cpu-bf16]",
    replaces="torch.distributed.algorithms.model_averaging.averagers.PeriodicModelAverager.average_parameters",
)
def averages_of_weights_are_low(original: Any, self: Any, params: Any) -> None:
    parameters = list(params)
    original(self, parameters)
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            for parameter in parameters:
                parameter.data.copy_(parameter.data.to(torch.get_autocast_dtype(kind)))


@defect(
    "Distributed checkpoints are rounded to bf16 if they are saved in a region",
    caught_by="distributed/test_saved.py::test_a_training_goes_on_as_it_was[cpu-bf16-FSDP2-in a region]",
)
def checkpoints_of_ranks_are_low() -> None:
    from torch.utils import _pytree

    def round_to_bf16(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype is not torch.float32 or not value.dim():
            return value
        return value.detach().to(torch.bfloat16).to(torch.float32)

    def save(state: Any, **kwargs: Any) -> Any:
        on = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        untyped: Any = _pytree
        return original(untyped.tree_map(round_to_bf16, state) if on else state, **kwargs)

    original = swap("torch.distributed.checkpoint", "save", save)


@defect(
    "The reduction of an embedding that is sharded by rows is rounded to bf16",
    caught_by="distributed/test_tensor_parallel.py::test_tables_have_the_bits_of_one_process[cpu-bf16]",
)
def tables_split_by_words_are_low() -> None:
    from torch.distributed.tensor._ops import _embedding_ops

    def rounded(self: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self, tensor.to(torch.bfloat16).to(tensor.dtype), *args, **kwargs)

    operators: Any = _embedding_ops
    original = swap(operators._MaskPartial, "_reduce_value", rounded)


@defect(
    "A row-wise parallel linear layer adds its bias on every rank: the sum has it twice",
    caught_by=(
        "distributed/test_tensor_parallel.py::"
        "test_gradients_and_loss_are_those_of_one_process[cpu-bf16-sequence parallel]"
    ),
    replaces="torch.distributed.tensor.parallel.RowwiseParallel._apply",
)
def biases_are_added_on_every_rank(original: Any, self: Any, module: Any, device_mesh: Any) -> Any:
    import torch.distributed as dist

    if getattr(module, "bias", None) is not None:
        with torch.no_grad():
            module.bias.mul_(dist.get_world_size())
    return original(self, module, device_mesh)


@defect(
    "``loss_parallel`` rounds the logits to bf16",
    caught_by="distributed/test_loss_parallel.py::test_losses_are_those_of_one_process[cpu-bf16-float32 in a region]",
    replaces="torch.distributed.tensor.parallel.loss._log_softmax",
)
def losses_of_split_logits_are_low(original: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    return original(x.to(torch.bfloat16).to(x.dtype), *args, **kwargs)


@defect(
    "A stage of a pipeline computes outside of the region of its schedule",
    caught_by="distributed/test_pipeline.py::test_gradients_are_those_of_one_process[cpu-bf16-ScheduleGPipe]",
)
def stages_leave_the_region() -> None:
    from torch.distributed import pipelining

    stage: Any = pipelining.PipelineStage
    swap(stage, "forward_maybe_with_nosync", outside_of_regions(stage.forward_maybe_with_nosync))
