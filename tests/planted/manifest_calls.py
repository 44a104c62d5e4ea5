"""Planted defects that ask about a call what no rule asks about: its layout, size, options, mode, or where it is."""

from __future__ import annotations

from tests.planted.defect import Defect

_HAND_CAST = "suites/rules/test_hand_cast.py"
_ARGUMENTS = "suites/gradients/test_arguments.py"
_VARIANTS = "suites/rules/test_variants.py"
_DROPOUT = "suites/gradients/test_dropout.py"
_BYSTANDERS = "suites/semantics/test_bystanders.py"
_WORK = "test_work_within_a_region_is_what_it_is_outside"


def _hand_cast(module: str, breaks: str, device: str, operator: str) -> Defect:
    failing = f"test_does_what_casting_by_hand_does[fake-{device}-bf16-{operator}]"
    return Defect(module, breaks, (_HAND_CAST, f"--amp-device=fake:{device}", "-k", operator), failing)


def _on_the_cpu(module: str, breaks: str, operator: str) -> Defect:
    failing = f"test_does_what_casting_by_hand_does[cpu-bf16-{operator}]"
    return Defect(module, breaks, (_HAND_CAST, "-k", operator), failing)


def _arguments(module: str, breaks: str, row: str) -> Defect:
    return Defect(module, breaks, (_ARGUMENTS,), f"test_operator_with_arguments[cpu-bf16-{row}]")


CALLS = (
    _hand_cast("indices_from_the_end_narrow", "a rule for dimensions counted from the end", "cuda", "scatter_add"),
    _hand_cast("softmax_of_millions_is_low", "a rule for every size", "cuda", "softmax.int"),
    _hand_cast("log_softmax_of_scalars_is_low", "a rule for scalars", "mps", "log_softmax.int"),
    _hand_cast("group_norm_of_channels_last_is_low", "a rule for every layout", "xpu", "group_norm"),
    _hand_cast("layer_norm_in_inference_is_low", "a rule for every mode", "cuda", "layer_norm"),
    _hand_cast("softmax_in_low_steps", "softmax in float32", "cuda", "softmax.int"),
    Defect(
        "low_dropout_scales_by_too_much",
        "the mean of what dropout keeps",
        (_DROPOUT,),
        "test_both_directions_drop_the_same[cpu-bf16-dropout-low]",
    ),
    Defect(
        "products_of_int32_are_low",
        "leaving whole numbers alone",
        ("suites/rules/test_left_alone.py", "--amp-device=fake:mps", "-k", "bmm"),
        "test_other_dtypes_and_other_devices[fake-mps-bf16-bmm]",
    ),
    _arguments("addmm_forgets_alpha", "alpha and beta together", "addmm, alpha and beta"),
    _arguments("gaussian_loss_forgets_its_constant", "an argument with every reduction", "gaussian, full, none"),
    _arguments("pads_never_crop", "negative widths of a pad", "pad by less than nothing"),
    Defect(
        "repeated_indices_count_once",
        "indices of any number",
        ("suites/gradients/test_formulas.py", "-k", "read"),
        "test_each_read_of_a_row_counts[cpu-bf16-embedding-many]",
    ),
    Defect(
        "packed_states_stay_sorted",
        "states of sequences that are packed in any order",
        ("suites/gradients/test_layer_arguments.py", "-k", "any"),
        "test_layer_with_arguments[cpu-bf16-GRU, packed in any order]",
    ),
    Defect(
        "bias_of_volumes_gets_no_gradient",
        "the gradient of every bias",
        ("suites/gradients/test_layers.py", "-k", "ConvTranspose3d"),
        "test_layer[cpu-bf16-ConvTranspose3d]",
    ),
    Defect(
        "convolutions_lose_half_a_second_derivative",
        "second derivatives of convolutions",
        ("suites/gradients/test_autograd.py",),
        "test_second_derivatives[cpu-bf16-conv2d]",
    ),
    Defect(
        "dropout_repeats_its_mask", "a mask for each call", (_DROPOUT,), "test_each_call_draws_anew[cpu-bf16-dropout]"
    ),
    Defect("nothing_is_left_is_nan", "dropping everything", (_DROPOUT,), "test_all_or_nothing[cpu-bf16-low]"),
    Defect(
        "dots_add_up_low",
        "sums of products of vectors",
        ("suites/gradients/test_reductions.py",),
        "test_sums_over_features[cpu-bf16-matmul of vectors]",
    ),
    Defect(
        "convolutions_of_one_pixel_add_up_low",
        "sums over channels without a bias",
        ("suites/gradients/test_reductions.py",),
        "test_sums_over_features[cpu-bf16-conv2d of one pixel]",
    ),
    Defect("new_tensors_are_rounded", "what is made in a region", (_BYSTANDERS,), f"{_WORK}[cpu-bf16-full]"),
    Defect("sums_take_the_low_dtype", "torch's own promotion", (_BYSTANDERS,), f"{_WORK}[cpu-bf16-+, both dtypes]"),
    _arguments("grouped_values_lose_half_their_gradient", "gradients of shared values", "attention, grouped"),
    Defect(
        "function_modes_leave_the_region",
        "a region around a mode",
        (_BYSTANDERS,),
        "test_a_context_leaves_the_region_alone[cpu-bf16-TorchFunctionMode]",
    ),
    Defect(
        "tables_are_cached",
        "what the cache does not take in",
        ("suites/semantics/test_cast_cache.py",),
        "test_a_tensor_without_gradients_is_read_as_it_is[cpu-bf16]",
    ),
    Defect(
        "functional_jvp_leaves_the_region",
        "the region of older transforms",
        ("suites/semantics/test_func.py", "-k", "functional"),
        "test_transforms_keep_the_region[cpu-bf16-autograd.functional.jvp-around]",
    ),
    Defect(
        "tracker_stops_at_2048",
        "counting a long interval",
        ("suites/scaler/test_update_rule.py",),
        "test_a_long_interval_is_counted_to_its_end[cpu-bf16]",
    ),
    Defect(
        "named_conversions_truncate",
        "conversions by another name",
        ("suites/formats/test_rounding.py", "-k", "ties"),
        "test_ties_and_their_neighbours[cpu-bf16-bf16-by its name]",
    ),
    Defect(
        "methods_leave_the_region",
        "products by every name",
        (_VARIANTS,),
        "test_variants_are_cast_as_the_plain_product[cpu-bf16-Tensor.baddbmm-grad]",
    ),
    Defect(
        "bmm_in_inference_mode_stays_wide",
        "products in every mode",
        (_VARIANTS,),
        "test_variants_are_cast_as_the_plain_product[cpu-bf16-Tensor.bmm-inference_mode]",
    ),
    Defect(
        "compression_saturates",
        "what overflows on its way to other ranks",
        ("suites/distributed/test_compression.py", "-k", "overflows"),
        "test_what_overflows_in_a_hook_arrives_as_infinity[cpu-bf16]",
    ),
    Defect(
        "inverses_in_a_region_are_rounded",
        "unscaling within a region",
        ("suites/scaler/test_unscale.py",),
        "test_unscaling_multiplies_by_the_rounded_inverse[cpu-bf16-3.0-in a region]",
    ),
    Defect(
        "threads_step_despite_inf",
        "skipping in a thread",
        ("suites/scaler/test_overflow.py",),
        "test_a_scaler_in_another_thread_skips_its_step[cpu-bf16]",
    ),
    Defect(
        "orthonormal_transforms_stay_low",
        "options that are words",
        (_HAND_CAST, "-k", "fft_rfft"),
        "test_does_what_casting_by_hand_does[cpu-bf16-fft_rfft]",
    ),
    _on_the_cpu("same_padding_of_dilated_rows_is_wide", "two options together", "conv1d.padding"),
    _on_the_cpu("baddbmm_of_no_product_is_wide", "an option that is zero", "baddbmm"),
    _on_the_cpu("reduced_decompositions_are_rounded", "float32 as it is, whatever the options", "linalg_svd"),
    _on_the_cpu("empty_tensors_do_not_promote", "tensors with nothing in them", "cat"),
    Defect(
        "cat_narrows_float64",
        "float64 beside what is cast",
        ("suites/rules/test_left_alone.py", "-k", "cat"),
        "test_other_dtypes_and_other_devices[cpu-bf16-cat]",
    ),
    Defect(
        "hstack_takes_the_first_dtype",
        "joins by every name",
        ("suites/rules/test_joins.py",),
        "test_a_join_is_as_wide_as_its_widest[cpu-bf16-hstack]",
    ),
    Defect(
        "einsum_of_both_dtypes_is_wide",
        "products of mixed arguments, by every name",
        (_VARIANTS, "-k", "mixed"),
        "test_variants_of_mixed_arguments_are_cast_alike[cpu-bf16-einsum of two]",
    ),
)
