"""Planted defects of regions and dtypes within compiled code and exported programs."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from typing import Any

import torch

from tests.planted.changes import mapped, replace_compile, rounded, with_gradient, wrap_compiled
from tests.planted.kernels import Overridden, outside_of_regions, override
from tests.planted.table import defect, swap


@defect(
    "Gradients that leave a compiled backward pass are rounded to bfloat16",
    caught_by="compile/test_regions.py::test_gradients_are_those_of_eager[cpu-bf16-nested, none]",
)
def compiled_gradients_are_rounded() -> None:
    def round_gradients(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
        def change(x: torch.Tensor) -> torch.Tensor:
            return with_gradient(x, lambda gradient: rounded(gradient, torch.bfloat16)) if x.requires_grad else x

        return lambda *args, **kwargs: function(*mapped(change, args), **kwargs)

    wrap_compiled(round_gradients)


@defect(
    "Dynamo ignores ``enabled=False`` of ``autocast``",
    caught_by="compile/test_regions.py::test_outputs_are_those_of_eager[cpu-bf16-nested-aot_eager]",
)
def traced_island_is_in_the_region() -> None:
    def enabled(*args: Any, **kwargs: Any) -> Any:
        region = original(*args, **kwargs)
        region.target_values[2] = True
        return region

    original = swap("torch._dynamo.variables.ctx_manager.AutocastModeVariable", "create", staticmethod(enabled))


@defect(
    "Dynamo traces an inner region in the dtype of the outer one",
    caught_by="compile/test_regions.py::test_outputs_are_those_of_eager[cpu-bf16-nested-aot_eager]",
)
def traced_region_takes_the_ambient_dtype() -> None:
    def ambient(*args: Any, **kwargs: Any) -> Any:
        region = original(*args, **kwargs)
        device_type = region.target_values[0]
        if torch.is_autocast_enabled(device_type):
            region.target_values[1] = torch.get_autocast_dtype(device_type)
        return region

    original = swap("torch._dynamo.variables.ctx_manager.AutocastModeVariable", "create", staticmethod(ambient))


@defect(
    "A pass of inductor computes float32 products in bfloat16, also in a disabled region",
    caught_by="compile/test_regions.py::test_fused_kernels_compute_in_the_regions[cpu-bf16-nested]",
)
def fused_graphs_narrow_float32_products() -> None:
    aten: Any = torch.ops.aten
    convert: Any = torch.ops.prims.convert_element_type.default

    def narrow(graph: torch.fx.Graph) -> None:
        for node in list(graph.nodes):
            if node.target is not aten.mm.default or node.meta["val"].dtype is not torch.float32:
                continue
            with graph.inserting_before(node):
                low = [graph.call_function(convert, (argument, torch.bfloat16)) for argument in node.args]
            for cast, argument in zip(low, node.args, strict=True):
                cast.meta["val"] = argument.meta["val"].to(torch.bfloat16)
            node.args = tuple(low)
            with graph.inserting_after(node):
                wide = graph.call_function(convert, (node, torch.float32))
            wide.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(wide, delete_user_cb=lambda user, wide=wide: user is not wide)
            node.meta["val"] = node.meta["val"].to(torch.bfloat16)

    swap("torch._inductor.config", "post_grad_custom_post_pass", narrow)


@defect(
    "Large float32 results of compiled code are rounded to bf16",
    caught_by="compile/test_regions.py::test_large_results_are_those_of_eager[cpu-bf16-in the region]",
)
def large_results_are_rounded() -> None:
    large = 4096

    def change(x: torch.Tensor) -> torch.Tensor:
        return rounded(x, torch.bfloat16) if x.dtype is torch.float32 and x.numel() > large else x

    def round_results(function: Callable[..., Any], _keywords: dict[str, Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: mapped(change, function(*args, **kwargs))

    wrap_compiled(round_results)


@defect(
    "While a graph is traced, linear under autocast computes in float32 and casts its result",
    caught_by="compile/test_dtypes.py::test_operators_take_the_dtypes_of_eager[cpu-bf16-mlp]",
)
def traced_casts_come_after_the_product() -> None:
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    traced: Any = get_proxy_mode

    def cast_after(call: Overridden) -> Any:
        return call.run().to(call.low) if traced() is not None else call.cast(call.low).run()

    for operator in ("linear", "addmm", "mm"):
        override(operator, cast_after)


@defect(
    "Inductor ignores ``dtype`` of sums, products and their cumulative forms",
    caught_by="compile/test_dtype_arguments.py::test_operators_give_the_dtype_that_is_asked_for[cpu-bf16]",
)
def fused_sums_forget_their_dtype() -> None:
    from torch._inductor import lowering

    aten: Any = torch.ops.aten
    lowerings: Any = lowering.lowerings

    def without_dtype(real: Callable[..., Any]) -> Callable[..., Any]:
        def lowered(*args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
            del dtype
            return real(*args, **kwargs)

        return lowered

    for overload in (aten.sum.dim_IntList, aten.prod.dim_int, aten.cumsum.default, aten.cumprod.default):
        lowerings[overload] = without_dtype(lowerings[overload])


@defect(
    "The option ``emulate_precision_casts`` of ``torch.compile`` has no effect",
    caught_by="compile/test_precision_casts.py::test_a_round_trip_by_hand_rounds[cpu-bf16-emulated]",
    since="2.13",  # in earlier releases the option does not keep the round trip: an expected failure
)
def compile_forgets_precision_casts() -> None:
    def compile_without(real: Any, model: Any = None, **keywords: Any) -> Any:
        options = {key: value for key, value in (keywords.pop("options", None) or {}).items() if "emulate" not in key}
        return real(model, options=options or None, **keywords)

    replace_compile(compile_without)


@defect(
    "``torch.export.export`` drops regions: their operators are exported in float32",
    caught_by="compile/test_export.py::test_an_exported_program_is_the_model_when_it_is_loaded[cpu-bf16]",
)
def exported_program_has_no_regions() -> None:
    region: Any = torch.amp.autocast_mode.autocast

    def exported(*args: Any, **kwargs: Any) -> Any:
        enter, leave = region.__enter__, region.__exit__
        region.__enter__ = lambda self: self
        region.__exit__ = lambda self, *_args: None
        try:
            return original(*args, **kwargs)
        finally:
            region.__enter__, region.__exit__ = enter, leave

    original = swap(torch.export, "export", exported)


@defect(
    "AOTInductor's packages hold a library that is not linked to the C++ library",
    caught_by="compile/test_export.py::test_aot_inductor_keeps_the_regions[cpu-bf16]",
    options=("--amp-tier=long",),
)
def packages_bring_their_own_cpp_library() -> None:
    def compile_and_package(_program: object, *, package_path: str) -> str:
        with zipfile.ZipFile(package_path, "w") as archive:
            archive.writestr(
                "model/data/aotinductor/model/model.wrapper.so", b"\x7fELF libtorch.so libgcc_s.so.1 libc.so.6"
            )
        return package_path

    swap(torch._inductor, "aoti_compile_and_package", compile_and_package)


@defect(
    "Modules of exported programs with dynamic shapes run outside of the region of their call",
    caught_by="compile/test_export.py::test_sizes_and_regions_of_a_program_change_together[cpu-bf16-as it is]",
)
def dynamic_programs_leave_the_region() -> None:
    def exported(*args: Any, **kwargs: Any) -> Any:
        program = original_export(*args, **kwargs)
        program.is_dynamic = bool(kwargs.get("dynamic_shapes"))
        return program

    def outside(program: Any, *args: Any, **kwargs: Any) -> Any:
        module = original_module(program, *args, **kwargs)
        if getattr(program, "is_dynamic", False):
            module.forward = outside_of_regions(module.forward)
        return module

    original_export = swap(torch.export, "export", exported)
    original_module = swap(torch.export.ExportedProgram, "module", outside)


@defect(
    "Gradients that enter an exported program with dynamic shapes have two bits of precision",
    caught_by="compile/test_export.py::test_a_program_with_dynamic_shapes_is_trained_in_its_regions[cpu-bf16]",
    replaces="torch.export.ExportedProgram.module",
)
def programs_round_their_gradients(original: Any, program: Any, *args: Any, **kwargs: Any) -> Any:
    module = original(program, *args, **kwargs)
    forward = module.forward

    def call(*inputs: Any) -> Any:
        outputs = forward(*inputs)
        for output in outputs:
            if program.range_constraints and output.requires_grad:
                output.register_hook(lambda gradient: rounded(gradient, torch.float8_e5m2))
        return outputs

    module.forward = call
    return module
