"""Planted defects of work that a region must leave alone: optimizers, statistics, moved values."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.planted.changes import rounded
from tests.planted.kernels import DEVICE, LOW_DTYPES, Overridden, outside_of_regions, override
from tests.planted.table import defect, swap


@defect(
    "Within ``torch.profiler.profile`` autocast is off",
    caught_by="semantics/test_bystanders.py::test_a_context_leaves_the_region_alone[cpu-bf16-profile]",
)
def profiling_leaves_the_region() -> None:
    def profiled(self: Any) -> Any:
        self.region = torch.is_autocast_enabled(DEVICE)
        torch.set_autocast_enabled(DEVICE, False)
        return original_enter(self)

    def restored(self: Any, *raised: Any) -> Any:
        torch.set_autocast_enabled(DEVICE, self.region)
        return original_exit(self, *raised)

    original_enter = swap(torch.profiler.profile, "__enter__", profiled)
    original_exit = swap(torch.profiler.profile, "__exit__", restored)


@defect(
    "The weights of layers that are created in a region are rounded to its dtype",
    caught_by="semantics/test_bystanders.py::test_work_within_a_region_is_what_it_is_outside[cpu-bf16-Linear]",
    replaces="torch.nn.init.kaiming_uniform_",
)
def layers_made_in_a_region_are_low(original: Any, tensor: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
    result = original(tensor, *arguments, **keywords)
    if torch.is_autocast_enabled(DEVICE):
        with torch.no_grad():
            tensor.copy_(tensor.to(torch.get_autocast_dtype(DEVICE)))
    return result


@defect(
    "``allow_mutation_on_saved_tensors`` disables autocast",
    caught_by=(
        "semantics/test_bystanders.py::test_a_context_leaves_the_region_alone[cpu-bf16-allow_mutation_on_saved_tensors]"
    ),
)
def mutations_leave_the_region() -> None:
    @contextlib.contextmanager
    def allow() -> Iterator[Any]:
        with original() as state, torch._C._DisableAutocast():
            yield state

    original = swap(torch.autograd.graph, "allow_mutation_on_saved_tensors", allow)


@defect(
    "``torch.full`` and ``torch.arange`` in a region round float32 to the autocast dtype",
    caught_by="semantics/test_bystanders.py::test_work_within_a_region_is_what_it_is_outside[cpu-bf16-full]",
)
def new_tensors_are_rounded() -> None:
    def rounding(function: Any) -> Any:
        def make(*args: Any, **kwargs: Any) -> torch.Tensor:
            result: torch.Tensor = function(*args, **kwargs)
            if torch.is_autocast_enabled(DEVICE) and result.dtype is torch.float32:
                result = result.to(torch.get_autocast_dtype(DEVICE)).float()
            return result

        return make

    swap(torch, "full", rounding(torch.full))
    swap(torch, "arange", rounding(torch.arange))


@defect(
    "The operator ``+`` of float32 and low precision in a region returns the low-precision dtype",
    caught_by="semantics/test_bystanders.py::test_work_within_a_region_is_what_it_is_outside[cpu-bf16-+, both dtypes]",
    replaces="torch.Tensor.__add__",
)
def sums_take_the_low_dtype(original: Any, self: torch.Tensor, other: Any) -> Any:
    result = original(self, other)
    low = isinstance(other, torch.Tensor) and other.dtype in (torch.bfloat16, torch.float16)
    return result.to(other.dtype) if low and torch.is_autocast_enabled(DEVICE) else result


@defect(
    "A ``TorchFunctionMode`` disables autocast until it is left",
    caught_by="semantics/test_bystanders.py::test_a_context_leaves_the_region_alone[cpu-bf16-TorchFunctionMode]",
)
def function_modes_leave_the_region() -> None:
    def entered(self: Any) -> Any:
        self.was_enabled = torch.is_autocast_enabled(DEVICE)
        torch.set_autocast_enabled(DEVICE, False)
        return original_enter(self)

    def left(self: Any, *exception: Any) -> Any:
        result = original_exit(self, *exception)
        torch.set_autocast_enabled(DEVICE, self.was_enabled)
        return result

    original_enter = swap("torch.overrides.TorchFunctionMode", "__enter__", entered)
    original_exit = swap("torch.overrides.TorchFunctionMode", "__exit__", left)


@defect(
    "mm and linear are not cast under deterministic algorithms",
    caught_by=(
        "semantics/test_bystanders.py::test_a_context_leaves_the_region_alone[cpu-bf16-use_deterministic_algorithms]"
    ),
)
def deterministic_products_stay_wide() -> None:
    def product(call: Overridden) -> Any:
        return (call if torch.are_deterministic_algorithms_enabled() else call.cast(call.low)).run()

    for name in ("mm", "linear"):
        override(name, product)


@defect(
    "An AdamW that is created in a region rounds its state after each step",
    caught_by=(
        "semantics/test_bystanders.py::"
        "test_work_within_a_region_is_what_it_is_outside[cpu-bf16-AdamW, made and stepped]"
    ),
)
def optimizers_of_a_region_round_their_state() -> None:
    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        self.made_in_a_region = torch.is_autocast_enabled(DEVICE)

    def rounding(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original_step(self, *args, **kwargs)
        for state in self.state.values() if self.made_in_a_region else ():
            for value in state.values():
                if isinstance(value, torch.Tensor) and value.dim():
                    value.copy_(value.bfloat16())
        return result

    original_init = swap(torch.optim.AdamW, "__init__", noting)
    original_step = swap(torch.optim.AdamW, "step", rounding)


@defect(
    "A causal mask that is created in a region has the autocast dtype",
    caught_by="semantics/test_bystanders.py::test_work_within_a_region_is_what_it_is_outside[cpu-bf16-a causal mask]",
)
def masks_of_a_region_are_low() -> None:
    def low(*args: Any, **kwargs: Any) -> Any:
        mask = original(*args, **kwargs)
        return mask.to(torch.get_autocast_dtype(DEVICE)) if torch.is_autocast_enabled(DEVICE) else mask

    original = swap(torch.nn.Transformer, "generate_square_subsequent_mask", staticmethod(low))


@defect(
    "A function that is decorated with ``no_grad`` or ``inference_mode`` runs outside of every region",
    caught_by="semantics/test_bystanders.py::test_a_decorator_leaves_the_region_alone[cpu-bf16-no_grad]",
)
def decorated_with_no_grad_leaves_the_region() -> None:
    def leaving(before: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(before)
        def decorate(self: Any, function: Any) -> Any:
            decorated: Any = before(self, outside_of_regions(function))
            return decorated

        return decorate

    for decorator in (torch.no_grad, torch.inference_mode):
        swap(decorator, "__call__", leaving(decorator.__call__))


@defect(
    "``quantile`` in a region rounds its result to the autocast dtype and back",
    caught_by="semantics/test_bystanders.py::test_work_within_a_region_is_what_it_is_outside[cpu-bf16-quantile]",
    replaces="torch.quantile",
)
def quantiles_of_a_region_are_rounded(original: Any, *args: Any, **kwargs: Any) -> Any:
    result: Any = original(*args, **kwargs)
    if torch.is_autocast_enabled(DEVICE) and result.dtype is torch.float32:
        return rounded(result, torch.get_autocast_dtype(DEVICE))
    return result


@defect(
    "DataLoader rounds the batches that it collates to bfloat16",
    caught_by="kernels/test_moved.py::test_what_is_moved_keeps_its_bits[cpu-bf16-DataLoader-outside]",
)
def batches_are_collated_low() -> None:
    from torch.utils import data

    def collate_low(batch: Any, **keywords: Any) -> Any:
        result = original(batch, **keywords)
        return result.bfloat16().to(result.dtype) if result.is_floating_point() else result

    original = swap(data._utils.collate, "collate_tensor_fn", collate_low)
    data._utils.collate.default_collate_fn_map[torch.Tensor] = collate_low


@defect(
    "``load_state_dict`` of optimizers rounds the step count to bfloat16",
    caught_by=(
        "kernels/test_moved.py::test_what_is_moved_keeps_its_bits[cpu-bf16-load_state_dict of an optimizer-outside]"
    ),
    replaces="torch.optim.Optimizer.load_state_dict",
)
def loaded_steps_are_rounded(original: Any, self: Any, state_dict: Any) -> None:
    original(self, state_dict)
    for state in self.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].bfloat16().float()


@defect(
    "``AveragedModel`` never updates its buffers",
    caught_by="kernels/test_moved.py::test_what_is_moved_keeps_its_bits[cpu-bf16-AveragedModel-outside]",
    replaces="torch.optim.swa_utils.AveragedModel.update_parameters",
)
def averaged_buffers_stay_behind(original: Any, self: Any, model: Any) -> None:
    before = [buffer.clone() for buffer in self.module.buffers()]
    original(self, model)
    for buffer, value in zip(self.module.buffers(), before, strict=True):
        buffer.copy_(value)


@defect(
    "Loading a low-precision state dict makes a module low-precision",
    caught_by=(
        "kernels/test_moved.py::test_what_is_moved_keeps_its_bits[cpu-bf16-load_state_dict of low numbers-outside]"
    ),
    replaces="torch.nn.Module.load_state_dict",
)
def low_checkpoints_make_low_weights(
    original: Any, self: Any, state: Any, strict: bool = True, assign: bool = False
) -> Any:
    low = any(value.dtype in LOW_DTYPES for value in state.values())
    return original(self, state, strict, assign or low)


@defect(
    "``Module.bfloat16`` truncates parameters",
    caught_by="kernels/test_moved.py::test_what_is_moved_keeps_its_bits[cpu-bf16-half or bfloat16-outside]",
    replaces="torch.nn.Module.bfloat16",
)
def whole_models_truncate(original: Any, self: Any) -> Any:
    for parameter in self.parameters():
        halves = parameter.data.view(torch.int32) & -65536
        parameter.data = halves.view(torch.float32)
    return original(self)


@defect(
    "``Module.to`` with bfloat16 and channels_last converts through float16",
    caught_by="kernels/test_moved.py::test_what_is_moved_keeps_its_bits[cpu-bf16-Module.to, channels_last-outside]",
    replaces="torch.nn.Module.to",
)
def layouts_of_models_round_twice(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("memory_format") is torch.channels_last and kwargs.get("dtype") is torch.bfloat16:
        self = original(self, torch.float16)
    return original(self, *args, **kwargs)
