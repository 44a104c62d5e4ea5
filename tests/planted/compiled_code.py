"""Planted defects of compiled code: the ambient region, graphs, recompilation and whole steps."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.planted.changes import in_the_first, mapped, replace_compile, rounded, with_gradient, wrap_compiled
from tests.planted.kernels import DEVICE, outside_of_regions
from tests.planted.table import defect, swap


@defect(
    "A compiled function runs outside of the autocast region in which it is called",
    caught_by=(
        "compile/test_ambient.py::test_a_callable_follows_the_region_it_is_called_in[cpu-bf16-function-aot_eager]"
    ),
)
def compiled_code_leaves_its_region() -> None:
    def leave(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
        outside: Callable[..., Any] = outside_of_regions(function)
        return outside

    wrap_compiled(leave)


@defect(
    "A compiled function runs in the region of its first call, as if its code had no guard on autocast",
    caught_by="compile/test_ambient.py::test_a_callable_follows_the_region_it_is_called_in[cpu-bf16-module-aot_eager]",
)
def compiled_code_keeps_its_first_region() -> None:
    wrap_compiled(in_the_first)


@defect(
    "A function compiled for dynamic shapes runs in the region of its first call",
    caught_by="compile/test_ambient.py::test_sizes_and_regions_change_together[cpu-bf16]",
)
def dynamic_code_keeps_its_first_region() -> None:
    def first_if_dynamic(function: Callable[..., Any], keywords: dict[str, Any]) -> Callable[..., Any]:
        return in_the_first(function, keywords) if keywords.get("dynamic") else function

    wrap_compiled(first_if_dynamic)


@defect(
    "AOTAutograd's cache key ignores autocast: code for bf16 is used in a region of fp16",
    caught_by=(
        "compile/test_ambient.py::"
        "test_what_was_compiled_for_one_dtype_is_not_taken_for_another[cpu-bf16-recompiled-inductor]"
    ),
    since="2.13",  # earlier releases have this fault: an expected failure
)
def cached_graphs_forget_their_dtype() -> None:
    cache: Any = importlib.import_module("torch._functorch._aot_autograd.autograd_cache")

    def init(self: Any, *arguments: Any, **keywords: Any) -> None:
        original(self, *arguments, **keywords)
        self.autocast_state = {}

    original = swap(cache.AOTAutogradCacheDetails, "__init__", init)


@defect(
    "A compiled module in evaluation mode runs outside of the region of its call",
    caught_by="compile/test_calls.py::test_evaluation_follows_the_region[cpu-bf16-module]",
    replaces="torch.compile",
)
def compiled_evaluation_leaves_the_region(original: Any, model: Any = None, **keywords: Any) -> Any:
    result = original(model, **keywords)
    if not isinstance(model, nn.Module):
        return result
    forward = result.forward

    def call(*args: Any, **kwargs: Any) -> Any:
        if model.training:
            return forward(*args, **kwargs)
        with torch._C._DisableAutocast():
            return forward(*args, **kwargs)

    result.forward = call
    return result


@defect(
    "A compiled function or module runs outside of the region if it is called with a keyword",
    caught_by="compile/test_calls.py::test_calls_of_every_form_follow_the_region[cpu-bf16-module-by keyword]",
)
def keywords_leave_the_region() -> None:
    def outside(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not kwargs:
                return function(*args)
            with torch._C._DisableAutocast():
                return function(*args, **kwargs)

        return call

    wrap_compiled(outside)


@defect(
    "In a region float32 inputs of compiled code that require no gradient are rounded to bfloat16",
    caught_by="compile/test_calls.py::test_what_no_rule_casts_keeps_every_bit[cpu-bf16]",
)
def compiled_inputs_are_rounded() -> None:
    def round_float32(x: torch.Tensor) -> torch.Tensor:
        return x.bfloat16().float() if x.dtype is torch.float32 and not x.requires_grad else x

    def rounding(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.is_autocast_enabled(DEVICE):
                args, kwargs = mapped(round_float32, args), mapped(round_float32, kwargs)
            return function(*args, **kwargs)

        return call

    wrap_compiled(rounding)


@defect(
    "While a graph is traced, ``custom_fwd`` runs forward with autocast off",
    caught_by=(
        "compile/test_functions.py::test_a_custom_function_computes_in_its_region[cpu-bf16-as they come-aot_eager]"
    ),
)
def traced_custom_function_leaves_the_region() -> None:
    def custom_fwd(function: Callable[..., Any] | None = None, *, device_type: str, cast_inputs: Any = None) -> Any:
        if function is None:
            return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

        @functools.wraps(function)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                with torch.autocast(device_type, enabled=False):
                    return function(*args, **kwargs)
            return function(*args, **kwargs)

        return original(forward, device_type=device_type, cast_inputs=cast_inputs)

    original = swap(torch.amp, "custom_fwd", custom_fwd)


@defect(
    "A region within a custom autograd function is traced as a disabled one",
    caught_by=(
        "compile/test_functions.py::test_a_custom_function_with_regions_of_its_own_computes_in_them[cpu-bf16-aot_eager]"
    ),
)
def traced_functions_lose_their_regions() -> None:
    from torch._dynamo.variables.ctx_manager import AutocastModeVariable

    within: list[bool] = []

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        within.append(True)
        try:
            return original_call_function(self, *args, **kwargs)
        finally:
            within.pop()

    def disabled(*args: Any, **kwargs: Any) -> Any:
        region = original_create(*args, **kwargs)
        if within:
            region.target_values[2] = False
        return region

    original_create = swap(AutocastModeVariable, "create", staticmethod(disabled))
    original_call_function = swap(
        "torch._dynamo.variables.higher_order_ops.AutogradFunctionApplyVariable", "call_function", call
    )


@defect(
    "Code that the compiler leaves to Python runs outside of the region (as in pytorch/pytorch#95837)",
    caught_by="compile/test_graph_breaks.py::test_a_region_survives_a_graph_break[cpu-bf16-called-aot_eager]",
)
def graph_break_leaves_the_region() -> None:
    def outside(function: Callable[..., Any] | None = None, **keywords: Any) -> Any:
        if function is None:
            return functools.partial(outside, **keywords)
        return original(outside_of_regions(function), **keywords)

    original = swap(torch.compiler, "disable", outside)


@defect(
    "Gradients that leave code with graph breaks are rounded to bfloat16",
    caught_by="compile/test_graph_breaks.py::test_gradients_pass_a_graph_break[cpu-bf16-nested, none]",
)
def gradients_are_rounded_at_breaks() -> None:
    def broken(function: Callable[..., Any], keywords: dict[str, Any]) -> Callable[..., Any]:
        def change(x: torch.Tensor) -> torch.Tensor:
            return with_gradient(x, lambda gradient: rounded(gradient, torch.bfloat16)) if x.requires_grad else x

        if keywords.get("fullgraph"):
            return function
        return lambda *args, **kwargs: function(*mapped(change, args), **kwargs)

    wrap_compiled(broken)


@defect(
    "The compiler is reset before each call, as if each region were a new state",
    caught_by="compile/test_recompilation.py::test_a_region_that_is_entered_again_compiles_nothing[cpu-bf16]",
)
def every_call_compiles_anew() -> None:
    def anew(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            torch.compiler.reset()
            return function(*args, **kwargs)

        return call

    wrap_compiled(anew)


@defect(
    "GradScaler steps an optimizer with a compiled ``step`` although it found an inf",
    caught_by="compile/test_scaler.py::test_a_compiled_optimizer_is_skipped_and_keeps_float32[cpu-bf16-aot_eager]",
    replaces="torch.amp.GradScaler._maybe_opt_step",
)
def compiled_optimizers_step_despite_inf(
    original: Any, self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any
) -> Any:
    if hasattr(optimizer.step, "_torchdynamo_orig_callable"):
        return optimizer.step(*args, **kwargs)
    return original(self, optimizer, state, *args, **kwargs)


@defect(
    "``torch.compile`` returns the function unchanged: nothing is compiled, and all results are right",
    caught_by="compile/test_zoo.py::test_step[cpu-bf16-mlp]",
)
def compile_returns_the_function() -> None:
    replace_compile(lambda real, model=None, **keywords: model if model is not None else (lambda function: function))


@defect(
    "``dynamic=True`` of ``torch.compile`` has no effect: each size has its own graph",
    caught_by="compile/test_zoo.py::test_step_with_dynamic_shapes[cpu-bf16-mlp]",
)
def every_size_compiles_anew() -> None:
    def compile_static(real: Any, model: Any = None, **keywords: Any) -> Any:
        return real(model, **{**keywords, "dynamic": False})

    replace_compile(compile_static)


@defect(
    "Compiled code runs in evaluation mode: dropout drops nothing",
    caught_by="compile/test_zoo.py::test_step_that_drops[cpu-bf16-aot_eager]",
)
def compiled_code_drops_nothing() -> None:
    def in_evaluation(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            training = [module for module in args if isinstance(module, torch.nn.Module) and module.training]
            for module in training:
                module.eval()
            try:
                return function(*args, **kwargs)
            finally:
                for module in training:
                    module.train()

        return call

    wrap_compiled(in_evaluation)


@defect(
    "The mode ``reduce-overhead`` of ``torch.compile`` records no CUDA graph",
    caught_by="compile/test_cuda_graphs.py::test_a_replay_casts_the_weights_of_today[cuda-bf16]",
)
def reduced_overhead_records_no_graph() -> None:
    def compile_without_mode(real: Any, model: Any = None, **keywords: Any) -> Any:
        return real(model, **{**keywords, "mode": None})

    replace_compile(compile_without_mode)
