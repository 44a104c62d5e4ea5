"""Planted defects in autocast regions: state, cast cache, backward, recomputation, transforms."""

from __future__ import annotations

from tests.planted.defect import Defect

SEMANTICS = (
    Defect(
        "nested_disable_ignored",
        "enabled=False inside a region",
        ("suites/semantics/test_region.py::test_the_innermost_region_decides",),
        "test_the_innermost_region_decides[cpu-bf16-on.off]",
    ),
    Defect(
        "exit_skipped_on_exception",
        "a region that is left by an exception",
        ("suites/semantics/test_state.py::test_exit_restores_the_state",),
        "test_exit_restores_the_state[cpu-bf16-plain-raises]",
    ),
    Defect(
        "exit_restores_default_dtype",
        "the dtype that an exit restores",
        ("suites/semantics/test_state.py::test_exit_restores_the_outer_region",),
        "test_exit_restores_the_outer_region[cpu-bf16-other dtype-plain]",
    ),
    Defect(
        "dtype_argument_ignored",
        "a region's dtype",
        ("suites/semantics/test_region.py::test_the_innermost_region_decides",),
        "test_the_innermost_region_decides[cpu-bf16-on.other]",
    ),
    Defect(
        "exit_drops_outer_cache",
        "the outer region's cast cache",
        ("suites/semantics/test_cast_cache.py::test_nested_regions_share_the_cache",),
        "test_nested_regions_share_the_cache[cpu-bf16]",
    ),
    Defect(
        "region_draws_random_numbers",
        "random numbers in a region",
        ("suites/semantics/test_region.py::test_random_numbers_are_the_same",),
        "test_random_numbers_are_the_same[cpu-bf16]",
    ),
    Defect(
        "decorator_does_nothing",
        "the decorator",
        ("suites/semantics/test_decorator.py",),
        "test_a_function_runs_in_the_region[cpu-bf16]",
    ),
    Defect(
        "disable_acts_on_every_device",
        "regions of two devices",
        ("suites/semantics/test_two_devices.py",),
        "test_disabling_one_device_leaves_the_other_on[cpu-bf16-fake:cuda]",
    ),
    Defect(
        "query_ignores_device",
        "is_autocast_enabled(device)",
        ("suites/semantics/test_state.py::test_queries_answer_what_the_region_says",),
        "test_queries_answer_what_the_region_says[cpu-bf16-plain]",
    ),
    Defect(
        "default_dtype_changed",
        "the default autocast dtype",
        ("suites/semantics/test_state.py::test_the_default_dtype_is_documented",),
        "test_the_default_dtype_is_documented[cpu-bf16]",
    ),
    Defect(
        "threads_inherit_region",
        "thread locality",
        ("suites/semantics/test_state.py",),
        "test_a_new_thread_does_not_inherit_the_region[cpu-bf16]",
    ),
    Defect(
        "cast_cache_off",
        "the cast cache",
        ("suites/semantics/test_cast_cache.py::test_a_weight_is_cast_once_in_a_region",),
        "test_a_weight_is_cast_once_in_a_region[cpu-bf16-grad]",
    ),
    Defect(
        "cast_cache_always_on",
        "cache_enabled=False",
        ("suites/semantics/test_cast_cache.py::test_without_the_cache_each_use_casts",),
        "test_without_the_cache_each_use_casts[cpu-bf16]",
    ),
    Defect(
        "cast_cache_never_cleared",
        "weights that were updated between regions",
        ("suites/semantics/test_cast_cache.py",),
        "test_an_update_between_regions_is_seen[cpu-bf16]",
    ),
    Defect(
        "cast_loses_history",
        "the gradient of a weight that was cast",
        ("suites/semantics/test_model_untouched.py",),
        "test_every_parameter_gets_a_gradient_of_its_own_dtype[cpu-bf16]",
    ),
    Defect(
        "parameters_cast_in_place",
        "the values of parameters",
        ("suites/semantics/test_model_untouched.py",),
        "test_parameters_are_left_alone[cpu-bf16]",
    ),
    Defect(
        "backward_runs_in_the_last_region",
        "backward outside the region",
        ("suites/semantics/test_backward.py",),
        "test_backward_does_not_see_the_region[cpu-bf16]",
    ),
    Defect(
        "custom_fwd_does_not_cast",
        "custom_fwd(cast_inputs=...)",
        ("suites/semantics/test_custom_function.py",),
        "test_inputs_are_cast_and_autocast_is_off[cpu-bf16-float16]",
    ),
    Defect(
        "custom_bwd_ignores_forward",
        "custom_bwd",
        ("suites/semantics/test_custom_function.py",),
        "test_backward_runs_in_the_region_of_forward[cpu-bf16]",
    ),
    Defect(
        "checkpoint_forgets_region",
        "recomputation in a checkpoint",
        ("suites/semantics/test_checkpoint.py",),
        "test_recomputation_runs_in_the_region_of_forward[cpu-bf16-plain-reentrant]",
    ),
    Defect(
        "checkpoint_recomputes_in_default_dtype",
        "the dtype of a recomputation",
        ("suites/semantics/test_checkpoint.py",),
        "test_recomputation_runs_in_the_region_of_forward[cpu-bf16-other dtype-non-reentrant]",
    ),
    Defect(
        "compile_drops_ambient_autocast",
        "the region around a compiled function",
        ("suites/semantics/test_transforms.py::test_a_compiled_callable_follows_the_ambient_region",),
        "test_a_compiled_callable_follows_the_ambient_region[cpu-bf16-function]",
    ),
    Defect(
        "vmap_leaves_the_region",
        "the region around vmap",
        ("suites/semantics/test_transforms.py::test_vmap_computes_in_the_same_dtype",),
        "test_vmap_computes_in_the_same_dtype[cpu-bf16-matmul]",
    ),
    Defect(
        "deprecated_region_ignores_enabled",
        "a disabled region of the deprecated class",
        ("suites/semantics/test_aliases.py",),
        "test_the_deprecated_region_is_the_same[cpu-bf16",
    ),
    Defect(
        "cpu_query_answers_wrong",
        "the deprecated queries",
        ("suites/semantics/test_aliases.py",),
        "test_the_queries_of_the_cpu_answer_the_same[cpu-bf16]",
    ),
    Defect(
        "compiled_island_ignored",
        "a float32 island in a compiled function",
        ("suites/semantics/test_transforms.py",),
        "test_regions_inside_a_compiled_function_are_those_of_eager[cpu-bf16]",
    ),
    Defect(
        "exit_ignores_keyboard_interrupt",
        "leaving a region by any exception",
        ("suites/semantics/test_state.py",),
        "test_an_exception_through_three_regions_restores_each[cpu-bf16-KeyboardInterrupt]",
    ),
    Defect(
        "custom_fwd_leaves_autocast_off",
        "leaving the region as it was when forward raises",
        ("suites/semantics/test_custom_function.py",),
        "test_a_forward_that_raises_leaves_the_region_as_it_was[cpu-bf16-cast]",
    ),
    Defect(
        "sequential_checkpoint_forgets_region",
        "recomputing segments in the region",
        ("suites/semantics/test_checkpoint.py",),
        "test_segments_of_a_sequence_are_recomputed_in_the_region[cpu-bf16",
    ),
    Defect(
        "autocast_is_not_available_on_mps",
        "the question whether a device has autocast",
        ("suites/semantics/test_state.py",),
        "test_autocast_is_available[cpu-bf16]",
    ),
)
