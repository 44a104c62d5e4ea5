"""Planted defects in torch.compile: regions that are lost on the way in, traced otherwise, or guarded by nothing."""

from __future__ import annotations

from tests.planted.defect import Defect

COMPILE = (
    Defect(
        "compiled_code_leaves_its_region",
        "compiled code in the region in which it is called",
        ("suites/compile/test_ambient.py",),
        "test_a_callable_follows_the_region_it_is_called_in[cpu-bf16-function-aot_eager]",
    ),
    Defect(
        "compiled_code_keeps_its_first_region",
        "guards of compiled code on autocast's state",
        ("suites/compile/test_ambient.py",),
        "test_a_callable_follows_the_region_it_is_called_in[cpu-bf16-module-aot_eager]",
    ),
    Defect(
        "compiled_gradients_are_rounded",
        "the compiled backward pass outside of the region",
        ("suites/compile/test_regions.py",),
        "test_gradients_are_those_of_eager[cpu-bf16-nested, none]",
    ),
    Defect(
        "compile_returns_the_function",
        "that anything is compiled at all",
        ("suites/compile/test_zoo.py",),
        "test_step[cpu-bf16-mlp]",
    ),
    Defect(
        "compile_forgets_precision_casts",
        "emulating casts in fused kernels",
        ("suites/compile/test_precision_casts.py",),
        "test_a_round_trip_by_hand_rounds[cpu-bf16-emulated]",
    ),
    Defect(
        "every_size_compiles_anew",
        "dynamic shapes",
        ("suites/compile/test_zoo.py",),
        "test_step_with_dynamic_shapes[cpu-bf16-mlp]",
    ),
    Defect(
        "every_call_compiles_anew",
        "using compiled code again",
        ("suites/compile/test_recompilation.py",),
        "test_a_region_that_is_entered_again_compiles_nothing[cpu-bf16]",
    ),
    Defect(
        "traced_island_is_in_the_region",
        "an inner disabled region, traced",
        ("suites/compile/test_regions.py",),
        "test_outputs_are_those_of_eager[cpu-bf16-nested-aot_eager]",
    ),
    Defect(
        "traced_region_takes_the_ambient_dtype",
        "an inner region of another dtype, traced",
        ("suites/compile/test_regions.py",),
        "test_outputs_are_those_of_eager[cpu-bf16-nested-aot_eager]",
    ),
    Defect(
        "graph_break_leaves_the_region",
        "the region at a graph break",
        ("suites/compile/test_graph_breaks.py",),
        "test_a_region_survives_a_graph_break[cpu-bf16-called-aot_eager]",
    ),
    Defect(
        "traced_custom_function_leaves_the_region",
        "custom_fwd, traced",
        ("suites/compile/test_functions.py",),
        "test_a_custom_function_computes_in_its_region[cpu-bf16-as they come-aot_eager]",
    ),
    Defect(
        "exported_program_has_no_regions",
        "regions of an exported program",
        ("suites/compile/test_export.py",),
        "test_an_exported_program_is_the_model_when_it_is_loaded[cpu-bf16]",
    ),
    Defect(
        "fused_sums_forget_their_dtype",
        "the dtype that is asked for, in fused kernels",
        ("suites/compile/test_dtype_arguments.py",),
        "test_operators_give_the_dtype_that_is_asked_for[cpu-bf16]",
    ),
    Defect(
        "fused_graphs_narrow_float32_products",
        "an island in fused graphs",
        ("suites/compile/test_regions.py",),
        "test_fused_kernels_compute_in_the_regions[cpu-bf16-nested]",
    ),
    Defect(
        "traced_casts_come_after_the_product",
        "the order of casts in a trace",
        ("suites/compile/test_dtypes.py",),
        "test_operators_take_the_dtypes_of_eager[cpu-bf16-mlp]",
    ),
    Defect(
        "dynamic_code_keeps_its_first_region",
        "guards of dynamic code on autocast's state",
        ("suites/compile/test_ambient.py",),
        "test_sizes_and_regions_change_together[cpu-bf16]",
    ),
    Defect(
        "compiled_optimizers_step_despite_inf",
        "skipping a compiled optimizer's step",
        ("suites/compile/test_scaler.py",),
        "test_a_compiled_optimizer_is_skipped_and_keeps_float32[cpu-bf16-aot_eager]",
    ),
    Defect(
        "large_results_are_rounded",
        "large float32 results of compiled code",
        ("suites/compile/test_regions.py",),
        "test_large_results_are_those_of_eager[cpu-bf16-in the region]",
    ),
    Defect(
        "gradients_are_rounded_at_breaks",
        "gradients that pass a graph break",
        ("suites/compile/test_graph_breaks.py",),
        "test_gradients_pass_a_graph_break[cpu-bf16-nested, none]",
    ),
    Defect(
        "traced_functions_lose_their_regions",
        "regions within a custom function, traced",
        ("suites/compile/test_functions.py",),
        "test_a_custom_function_with_regions_of_its_own_computes_in_them[cpu-bf16-aot_eager]",
    ),
    Defect(
        "packages_bring_their_own_cpp_library",
        "the C++ library of AOTInductor's packages",
        ("suites/compile/test_export.py", "--amp-tier=long", "-k", "aot_inductor"),
        "test_aot_inductor_keeps_the_regions[cpu-bf16]",
    ),
    Defect(
        "cached_graphs_forget_their_dtype",
        "the dtype in the key of AOTAutograd's cache",
        ("suites/compile/test_ambient.py", "-k", "taken_for_another"),
        "test_what_was_compiled_for_one_dtype_is_not_taken_for_another[cpu-bf16-recompiled-inductor]",
    ),
    Defect(
        "compiled_evaluation_leaves_the_region",
        "evaluating a compiled module in the region",
        ("suites/compile/test_calls.py",),
        "test_evaluation_follows_the_region[cpu-bf16-module]",
    ),
    Defect(
        "keywords_leave_the_region",
        "calling compiled code with keywords",
        ("suites/compile/test_calls.py", "-k", "keyword"),
        "test_calls_of_every_form_follow_the_region[cpu-bf16-module-by keyword]",
    ),
    Defect(
        "compiled_inputs_are_rounded",
        "float32 inputs of compiled code",
        ("suites/compile/test_calls.py", "-k", "every_bit"),
        "test_what_no_rule_casts_keeps_every_bit[cpu-bf16]",
    ),
    Defect(
        "compiled_code_drops_nothing",
        "dropout in compiled code",
        ("suites/compile/test_zoo.py", "-k", "drops"),
        "test_step_that_drops[cpu-bf16-aot_eager]",
    ),
    Defect(
        "dynamic_programs_leave_the_region",
        "an exported program with dynamic shapes in the region in which it is called",
        ("suites/compile/test_export.py", "-k", "together"),
        "test_sizes_and_regions_of_a_program_change_together[cpu-bf16-as it is]",
    ),
    Defect(
        "programs_round_their_gradients",
        "gradients of an exported program with dynamic shapes",
        ("suites/compile/test_export.py", "-k", "trained"),
        "test_a_program_with_dynamic_shapes_is_trained_in_its_regions[cpu-bf16]",
    ),
)
