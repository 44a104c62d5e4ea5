"""Planted defects of function transforms, tracing, scripting and kinds of tensors in a region."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tests.planted.kernels import DEVICE, Overridden, outside_of_regions, override
from tests.planted.table import defect, swap


@defect(
    "A compiled function ignores the ambient region",
    caught_by="semantics/test_transforms.py::test_a_compiled_callable_follows_the_ambient_region[cpu-bf16-function]",
)
def compile_drops_ambient_autocast() -> None:
    def compile_outside(model: Any = None, **keywords: Any) -> Any:
        if model is None:
            return lambda function: compile_outside(function, **keywords)
        compiled = original(model, **keywords)

        def outside(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(DEVICE, enabled=False):
                return compiled(*args, **kwargs)

        return outside

    original = swap(torch, "compile", compile_outside)


@defect(
    "``torch.func.vmap`` runs its function outside the region",
    caught_by="semantics/test_transforms.py::test_vmap_computes_in_the_same_dtype[cpu-bf16-matmul]",
    replaces="torch.func.vmap",
)
def vmap_leaves_the_region(original: Any, function: Any, *options: Any, **keywords: Any) -> Any:
    def outside(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(DEVICE, enabled=False):
            return function(*args, **kwargs)

    return original(outside, *options, **keywords)


@defect(
    "``autocast(enabled=False)`` inside a compiled function has no effect",
    caught_by="semantics/test_transforms.py::test_regions_inside_a_compiled_function_are_those_of_eager[cpu-bf16]",
)
def compiled_island_ignored() -> None:
    enabled = 2

    def enter_enabled(*values: Any) -> Any:
        return original(*values[:enabled], True, *values[enabled + 1 :])

    original = swap(torch.amp.autocast_mode, "_enter_autocast", enter_enabled)
    swap(torch.amp, "_enter_autocast", enter_enabled)


@defect(
    "``torch.func.jvp`` and ``jacfwd`` call their function with autocast off",
    caught_by="semantics/test_func.py::test_transforms_keep_the_region[cpu-bf16-jvp-around",
)
def forward_mode_outside_the_region() -> None:
    def outside(transform: Callable[..., Any]) -> Callable[..., Any]:
        def transformed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return transform(torch.autocast(DEVICE, enabled=False)(function), *args, **kwargs)

        return transformed

    swap(torch.func, "jvp", outside(torch.func.jvp))
    swap(torch.func, "jacfwd", outside(torch.func.jacfwd))


@defect(
    "``torch.autograd.functional.jvp`` and ``vhp`` run their function outside the region",
    caught_by="semantics/test_func.py::test_transforms_keep_the_region[cpu-bf16-autograd.functional.jvp-around]",
)
def functional_jvp_leaves_the_region() -> None:
    def outside(before: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(DEVICE, enabled=False):
                return before(*args, **kwargs)

        return run

    swap(torch.autograd.functional, "jvp", outside(torch.autograd.functional.jvp))
    swap(torch.autograd.functional, "vhp", outside(torch.autograd.functional.vhp))


@defect(
    "``torch.func.vmap`` with ``chunk_size`` computes outside the region",
    caught_by="semantics/test_higher_order.py::test_what_it_calls_is_in_the_region[cpu-bf16-vmap in chunks-on]",
    replaces="torch.func.vmap",
)
def chunks_leave_the_region(
    original: Any, function: Callable[..., Any], *arguments: Any, chunk_size: int | None = None, **keywords: Any
) -> Any:
    mapped = original(function, *arguments, chunk_size=chunk_size, **keywords)

    def outside(*inputs: Any, **more: Any) -> Any:
        with torch.autocast(DEVICE, enabled=False):
            return mapped(*inputs, **more)

    return mapped if chunk_size is None else outside


@defect(
    "``torch.jit.fork`` runs its function outside the region",
    caught_by="semantics/test_higher_order.py::test_what_it_calls_is_in_the_region[cpu-bf16-jit.fork-on]",
)
def forks_leave_the_region() -> None:
    swap(torch.jit, "fork", outside_of_regions(torch.jit.fork))


@defect(
    "A scripted function runs below autocast",
    caught_by="semantics/test_tracing.py::test_a_script_follows_the_ambient_region[cpu-bf16-function",
    replaces="torch.jit.script",
)
def scripts_leave_the_region(original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    scripted = original(function, *args, **kwargs)
    if isinstance(function, torch.nn.Module):
        return scripted

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        with torch._C._DisableAutocast():
            return scripted(*arguments)

    return call


@defect(
    "``make_fx`` traces its function outside of any region",
    caught_by="semantics/test_tracing.py::test_make_fx_records_the_casts[cpu-bf16-around",
    replaces="torch.fx.experimental.proxy_tensor.make_fx",
)
def make_fx_forgets_casts(original: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return original(torch.autocast(DEVICE, enabled=False)(function), *args, **kwargs)


@defect(
    "``torch.export.export`` traces below autocast",
    caught_by="semantics/test_tracing.py::test_a_program_exported_in_a_region_is_recorded_in_its_dtype[cpu-bf16",
    replaces="torch.export.export",
)
def export_leaves_the_region(original: Any, *args: Any, **kwargs: Any) -> Any:
    with torch._C._DisableAutocast():
        return original(*args, **kwargs)


@defect(
    "A loaded script runs outside of every region",
    caught_by="semantics/test_tracing.py::test_a_script_follows_the_ambient_region[cpu-bf16-loaded module]",
    replaces="torch.jit.load",
)
def loaded_scripts_leave_the_region(original: Any, *args: Any, **kwargs: Any) -> Any:
    return outside_of_regions(original(*args, **kwargs).forward)


@defect(
    "A product of a sparse matrix under autocast has three bits of precision",
    caught_by="semantics/test_tensor_kinds.py::test_products_of_sparse_matrices[cpu-bf16-mm-coo",
    # Products of COO matrices are an expected failure on CUDA.
    caught_on_cuda_by="semantics/test_tensor_kinds.py::test_products_of_sparse_matrices[cuda-bf16-mm-csr]",
    overrides="mm",
)
def sparse_products_are_rounded(call: Overridden) -> Any:
    result = call.cast(call.low).run()
    sparse = call.args[0].layout != torch.strided and result.layout == torch.strided
    return result.to(torch.float8_e4m3fn).to(result.dtype) if sparse else result


@defect(
    "mm and bmm of a tensor subclass are not cast",
    caught_by="semantics/test_tensor_kinds.py::test_subclasses_are_cast_as_tensors_are[cpu-bf16-mm-Named",
)
def subclasses_stay_wide() -> None:
    def multiply(call: Overridden) -> Any:
        plain = all(type(tensor) in {torch.Tensor, torch.nn.Parameter} for tensor in call.floats())
        return call.cast(call.low).run() if plain else call.run()

    override("mm", multiply, [DEVICE])
    override("bmm", multiply, [DEVICE])


@defect(
    "A product whose first argument is empty is not cast",
    caught_by="semantics/test_tensor_kinds.py::test_products_of_nothing_and_of_rows_are_low[cpu-bf16-linear",
)
def empty_batches_stay_wide() -> None:
    def multiply(call: Overridden) -> Any:
        return call.run() if call.args[0].numel() == 0 else call.cast(call.low).run()

    override("linear", multiply, [DEVICE])
    override("conv2d", multiply, [DEVICE])


@defect(
    "cat of a single tensor casts it to the autocast dtype",
    caught_by="semantics/test_tensor_kinds.py::test_joining_any_number_of_float32_tensors_is_float32[cpu-bf16-0",
)
def cat_of_one_is_low() -> None:
    def cat(call: Overridden) -> Any:
        dtypes = {tensor.dtype for tensor in call.floats()}
        if len(call.floats()) == 1:
            return call.cast(call.low).run()
        return call.cast(torch.float32).run() if len(dtypes) > 1 else call.run()

    override("cat", cat, [DEVICE])


@defect(
    "conv2d under autocast returns a contiguous result, whatever the memory format",
    caught_by=(
        "semantics/test_tensor_kinds.py::test_the_memory_format_is_that_of_casts_by_hand[cpu-bf16-conv-channels_last"
    ),
)
def convolutions_answer_contiguous() -> None:
    def convolve(call: Overridden) -> Any:
        return call.cast(call.low).run().contiguous()

    override("conv2d", convolve, [DEVICE])


@defect(
    "linear of a nested tensor is not cast",
    caught_by="semantics/test_tensor_kinds.py::test_nested_tensors_are_cast[cpu-bf16-linear-strided",
)
def nested_tensors_stay_wide() -> None:
    def linear(call: Overridden) -> Any:
        return call.run() if call.args[0].is_nested else call.cast(call.low).run()

    override("linear", linear, [DEVICE])


@defect(
    "conv2d ignores the memory format of its weight",
    caught_by=(
        "semantics/test_tensor_kinds.py::"
        "test_the_memory_format_is_that_of_casts_by_hand[cpu-bf16-conv, weight channels last-contiguous]"
    ),
)
def layouts_of_weights_are_forgotten() -> None:
    def convolve(call: Overridden) -> Any:
        result = call.cast(call.low).run()
        weight = call.args[1]
        last = weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
        return result.contiguous() if last else result

    override("conv2d", convolve, [DEVICE])


@defect(
    "linear outside of inference mode does not cast a weight that was created in it",
    caught_by="semantics/test_tensor_kinds.py::test_tensors_of_inference_mode_are_cast_outside_of_it[cpu-bf16-linear]",
    overrides="linear",
)
def inference_weights_stay_wide(call: Overridden) -> Any:
    wide = call.args[1].is_inference() and not torch.is_inference_mode_enabled()
    return (call if wide else call.cast(call.low)).run()
