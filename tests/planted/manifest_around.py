"""Planted defects of what stands around a region, a step and a number: other modes, ways to call, and places."""

from __future__ import annotations

from tests.planted.defect import Defect

_BYSTANDERS = "suites/semantics/test_bystanders.py"
_MOVED = "suites/semantics/test_moved.py"
_EXACT = "suites/gradients/test_exact.py"

AROUND = (
    Defect(
        "regions_swallow_value_errors",
        "exceptions of every kind",
        ("suites/semantics/test_region_class.py", "-k", "swallowed"),
        "test_an_exception_is_never_swallowed[cpu-bf16]",
    ),
    Defect(
        "several_threads_stay_wide",
        "a region on any number of threads",
        ("suites/semantics/test_threads.py", "-k", "several"),
        "test_operators_on_several_threads_compute_in_the_region[cpu-bf16]",
    ),
    Defect(
        "inference_weights_stay_wide",
        "weights that were made in inference mode",
        ("suites/semantics/test_tensor_kinds.py", "-k", "inference"),
        "test_tensors_of_inference_mode_are_cast_outside_of_it[cpu-bf16-linear]",
    ),
    Defect(
        "deterministic_products_stay_wide",
        "a region under any flag",
        (_BYSTANDERS, "-k", "context"),
        "test_a_context_leaves_the_region_alone[cpu-bf16-use_deterministic_algorithms]",
    ),
    Defect(
        "optimizers_of_a_region_round_their_state",
        "optimizers that are made in a region",
        (_BYSTANDERS, "-k", "stepped"),
        "test_work_within_a_region_is_what_it_is_outside[cpu-bf16-AdamW, made and stepped]",
    ),
    Defect(
        "forks_leave_the_region",
        "functions that are called for their user",
        ("suites/semantics/test_higher_order.py", "-k", "fork"),
        "test_what_it_calls_is_in_the_region[cpu-bf16-jit.fork-on]",
    ),
    Defect(
        "checkpoints_by_keyword_forget_the_region",
        "checkpoints, however they are called",
        ("suites/semantics/test_checkpoint.py", "-k", "keyword"),
        "test_gradients_are_those_without_a_checkpoint[cpu-bf16-by keyword, backward outside]",
    ),
    Defect(
        "gpu_dtype_is_set_on_the_cpu",
        "setters of older code",
        ("suites/semantics/test_aliases.py", "-k", "setters"),
        "test_the_old_setters_without_a_device_mean_cuda[cpu-bf16]",
    ),
    Defect(
        "masks_of_a_region_are_low",
        "masks that are made in a region",
        (_BYSTANDERS, "-k", "mask"),
        "test_work_within_a_region_is_what_it_is_outside[cpu-bf16-a causal mask]",
    ),
    Defect(
        "loaded_steps_are_rounded",
        "counts that are loaded",
        (_MOVED, "-k", "optimizer"),
        "test_what_is_moved_keeps_its_bits[cpu-bf16-load_state_dict of an optimizer-outside]",
    ),
    Defect(
        "averaged_buffers_stay_behind",
        "buffers of averaged models",
        (_MOVED, "-k", "Averaged"),
        "test_what_is_moved_keeps_its_bits[cpu-bf16-AveragedModel-outside]",
    ),
    Defect(
        "low_checkpoints_make_low_weights",
        "the dtype of a model that loads",
        (_MOVED, "-k", "low"),
        "test_what_is_moved_keeps_its_bits[cpu-bf16-load_state_dict of low numbers-outside]",
    ),
    Defect(
        "whole_models_truncate",
        "conversions of whole models",
        (_MOVED, "-k", "half"),
        "test_what_is_moved_keeps_its_bits[cpu-bf16-half or bfloat16-outside]",
    ),
    Defect(
        "gradients_with_a_graph_stay_scaled",
        "gradients that have a graph",
        ("suites/scaler/test_unscale.py", "-k", "graph"),
        "test_gradients_with_a_graph_are_unscaled_and_checked[cpu-bf16]",
    ),
    Defect(
        "channels_last_hides_infs",
        "gradients in any layout",
        ("suites/scaler/test_overflow.py", "-k", "layout"),
        "test_bad_elements_are_found_in_any_layout[cpu-bf16-channels_last]",
    ),
    Defect(
        "clipping_lengthens_gradients",
        "what need not be clipped",
        ("suites/scaler/test_clipping.py", "-k", "within"),
        "test_what_is_within_the_limit_stays_as_it_is[cpu-bf16-loop-clip_grad_norm_]",
    ),
    Defect(
        "each_gradient_is_unscaled_alone",
        "one launch for all gradients",
        ("suites/scaler/test_synchronisations.py", "-k", "once"),
        "test_gradients_of_one_dtype_are_unscaled_at_once[cpu-bf16]",
    ),
    Defect(
        "unscaling_flushes_small_gradients",
        "gradients of every size",
        ("suites/scaler/test_unscale.py", "-k", "large"),
        "test_large_gradients_are_no_overflow[cpu-bf16-loop-1.0]",
    ),
    Defect(
        "modules_keep_their_last_gradient",
        "gradients that are cleared in any way",
        ("suites/scaler/test_life_of_parameters.py", "-k", "cleared"),
        "test_gradients_may_be_cleared_in_any_way[cpu-bf16-module-SGD]",
    ),
    Defect(
        "clamp_hides_nan",
        "what is no number",
        (_EXACT, "-k", "clamp"),
        "test_what_is_no_number_stays_none[cpu-bf16-clamp, nan]",
    ),
    Defect(
        "topk_goes_by_way_of_fp16",
        "choices among low numbers",
        (_EXACT, "-k", "topk"),
        "test_a_choice_among_low_numbers_is_that_among_wide_ones[cpu-bf16-topk]",
    ),
    Defect(
        "leaky_relu_in_place_forgets_its_slope",
        "operators in place",
        (_EXACT, "-k", "leaky_relu"),
        "test_in_place_is_what_a_new_tensor_would_be[cpu-bf16-leaky_relu]",
    ),
    Defect(
        "logaddexp_overflows",
        "functions of large numbers",
        ("suites/gradients/test_edges.py", "-k", "logaddexp"),
        "test_edges_are_finite[cpu-bf16-logaddexp]",
    ),
    Defect(
        "log_softmax_into_float32_is_rounded",
        "a dtype that is asked for, by either name",
        ("suites/gradients/test_arguments.py", "-k", "log_softmax"),
        "test_operator_with_arguments[cpu-bf16-functional.log_softmax in float32]",
    ),
    Defect(
        "layer_norm_in_one_pass",
        "rows of nearly equal numbers",
        ("suites/gradients/test_edges.py", "-k", "near", "--amp-dtype=fp16"),
        "test_edges_are_finite[cpu-fp16-layer_norm_of_near_numbers]",
    ),
    Defect(
        "norms_of_zeros_have_no_gradient",
        "gradients of zeros",
        ("suites/gradients/test_edges.py", "-k", "zeros"),
        "test_edges_are_finite[cpu-bf16-norm_of_zeros]",
    ),
    Defect(
        "odd_widths_stay_wide",
        "products of any width",
        ("suites/rules/test_variants.py", "-k", "width"),
        "test_variants_are_cast_as_the_plain_product[cpu-bf16-linear of width 20-grad]",
    ),
    Defect(
        "chains_leave_the_region",
        "products by every name",
        ("suites/rules/test_variants.py", "-k", "chain"),
        "test_variants_are_cast_as_the_plain_product[cpu-bf16-chain_matmul-grad]",
    ),
    Defect(
        "lazy_layers_start_wide",
        "the first call of a layer",
        ("suites/rules/test_layers.py", "-k", "lazy"),
        "test_lazy_layers_answer_their_first_call_as_the_next[cpu-bf16-LazyLinear]",
    ),
    Defect(
        "joins_into_a_tensor_are_rounded",
        "joining into a tensor",
        ("suites/rules/test_joins.py", "-k", "into"),
        "test_a_join_is_as_wide_as_its_widest[cpu-bf16-cat into a tensor]",
    ),
    Defect(
        "each_maximum_gets_the_whole_gradient",
        "gradients of equal numbers",
        (_EXACT, "-k", "amax"),
        "test_gradients_at_kinks_are_those_of_wide_numbers[cpu-bf16-amax]",
    ),
    Defect(
        "nobody_calls_the_tests",
        "that a test's function is called",
        ("suites/rules/test_banned.py",),
        "test_it_runs_in_float32_on_the_cpu[cpu-bf16]",
    ),
)
