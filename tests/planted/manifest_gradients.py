"""Planted defects in outputs, gradients and statistics: sums, masks, scales, lost and rounded gradients."""

from __future__ import annotations

from tests.planted.defect import Defect

FP16 = "--amp-dtype=fp16"

GRADIENTS = (
    Defect(
        "gelu_has_a_low_branch",
        "computing the same in every dtype",
        ("suites/gradients/test_whole_check.py",),
        "test_a_network_has_no_findings[cpu-bf16-mlp]",
    ),
    Defect(
        "low_precision_accumulation",
        "sums of products in float32",
        ("suites/gradients/test_reductions.py",),
        "test_sums_over_features[cpu-bf16-linear]",
    ),
    Defect(
        "kernel_accumulates_in_low_precision",
        "sums of products in float32, below autocast",
        ("suites/gradients/test_reductions.py", FP16),
        "test_sums_over_features[cpu-fp16-linear]",
    ),
    Defect(
        "backward_products_in_low_precision",
        "sums over the batch in float32",
        ("suites/gradients/test_reductions.py",),
        "test_sums_over_the_batch[cpu-bf16-linear]",
    ),
    Defect(
        "batch_norm_statistics_low_precision",
        "running statistics in float32",
        ("suites/gradients/test_statistics.py",),
        "test_statistics_are_float32[cpu-bf16-BatchNorm2d-low]",
    ),
    Defect(
        "batch_norm_updates_in_evaluation",
        "statistics that stay in evaluation mode",
        ("suites/gradients/test_statistics.py",),
        "test_evaluation_leaves_the_statistics_alone[cpu-bf16]",
    ),
    Defect(
        "linear_bias_gets_no_gradient",
        "the gradient of a bias",
        ("suites/gradients/test_layers.py",),
        "test_layer[cpu-bf16-Linear]",
    ),
    Defect(
        "recurrent_weights_get_no_gradient",
        "the gradient of a recurrent weight",
        ("suites/gradients/test_zoo.py",),
        "test_step[cpu-bf16-lstm]",
    ),
    Defect(
        "embedding_gradient_lost",
        "the gradient of an embedding",
        ("suites/gradients/test_zoo.py",),
        "test_step[cpu-bf16-decoder]",
    ),
    Defect(
        "embedding_gradient_rounded",
        "the float32 gradient of a float32 operator",
        ("suites/gradients/test_operators.py",),
        "test_operator[cpu-bf16-embedding]",
    ),
    Defect(
        "conv2d_weight_gradient_scaled",
        "the size of a gradient, by one percent",
        ("suites/gradients/test_operators.py",),
        "test_operator[cpu-bf16-conv2d]",
    ),
    Defect(
        "gelu_backward_approximate",
        "the gradient of a function",
        ("suites/gradients/test_operators.py",),
        "test_operator[cpu-bf16-gelu]",
    ),
    Defect(
        "layer_norm_weight_gradient_rounded",
        "the gradient of a norm's weight",
        ("suites/gradients/test_zoo.py",),
        "test_step[cpu-bf16-decoder]",
    ),
    Defect(
        "layer_norm_squares_in_low_precision",
        "mean and variance in float32",
        ("suites/gradients/test_operators.py",),
        "test_operator[cpu-bf16-layer_norm_of_low]",
    ),
    Defect(
        "layer_norm_asks_for_autocast",
        "layers that do not depend on autocast's state",
        ("suites/gradients/test_queries.py",),
        "test_nothing_asks_for_autocast[cpu-bf16-layers]",
    ),
    Defect(
        "gradients_accumulate_in_low_precision",
        "gradients that are added up in float32",
        ("suites/gradients/test_accumulation.py",),
        "test_sums_of_micro_batches_stay_in_float32[cpu-bf16]",
    ),
    Defect(
        "attention_ignores_its_mask",
        "the mask of attention",
        ("suites/gradients/test_ranges.py",),
        "test_masked_attention_is_finite[cpu-bf16-boolean]",
    ),
    Defect(
        "attention_ignores_its_scale",
        "the scale of attention",
        ("suites/gradients/test_operators.py",),
        "test_operator[cpu-bf16-attention_scaled]",
    ),
    Defect(
        "attention_mask_becomes_nan",
        "finite results beside masked scores",
        ("suites/gradients/test_ranges.py",),
        "test_masked_attention_is_finite[cpu-bf16-infinite]",
    ),
    Defect(
        "attention_scale_doubled_everywhere",
        "the formula of attention, in every dtype",
        ("suites/gradients/test_formulas.py",),
        "test_operator_is_its_formula[cpu-bf16-attention]",
    ),
    Defect(
        "float_masks_refused",
        "float32 masks beside low-precision queries",
        ("suites/gradients/test_attention_modes.py",),
        "test_masks_of_all_dtypes_mean_the_same[cpu-bf16-train-fused]",
    ),
    Defect(
        "encoder_fast_path_ignores_its_mask",
        "the mask on the encoder's fast path",
        ("suites/gradients/test_attention_modes.py",),
        "test_encoder[cpu-bf16-eval-no_grad-causal]",
    ),
    Defect(
        "cross_entropy_low_precision",
        "cross-entropy in float32",
        ("suites/gradients/test_hollow.py",),
        "test_losses_are_not_rounded[cpu-bf16-cross_entropy]",
    ),
    Defect(
        "mse_loss_low_precision",
        "the range of a loss",
        ("suites/gradients/test_ranges.py", FP16),
        "test_losses_leave_the_range_of_the_low_dtype[cpu-fp16-mse_loss]",
    ),
    Defect(
        "small_gradients_flushed",
        "the range of bf16 gradients",
        ("suites/gradients/test_ranges.py",),
        "test_a_gradient_below_the_range_needs_a_scale[cpu-bf16]",
    ),
    Defect(
        "frozen_weights_are_trained",
        "frozen weights",
        ("suites/gradients/test_layers.py",),
        "test_frozen_parameters_stay_without[cpu-bf16]",
    ),
    Defect(
        "frozen_weights_rounded_twice",
        "one cast, whether a weight is frozen or not",
        ("suites/gradients/test_layers.py", FP16),
        "test_freezing_a_layer_leaves_the_others_alone[cpu-fp16]",
    ),
    Defect(
        "dropout_masks_differ",
        "one mask for both directions",
        ("suites/gradients/test_dropout.py",),
        "test_both_directions_drop_the_same[cpu-bf16-dropout-low]",
    ),
    Defect(
        "dropout_drops_half_as_much",
        "the share that is dropped",
        ("suites/gradients/test_dropout.py",),
        "test_the_share_that_is_dropped[cpu-bf16-dropout]",
    ),
    Defect(
        "dropout_drops_in_evaluation",
        "evaluation mode",
        ("suites/gradients/test_dropout.py",),
        "test_evaluation_drops_nothing[cpu-bf16]",
    ),
    Defect(
        "recurrent_dropout_ignored",
        "dropout between the layers of recurrent ones",
        ("suites/gradients/test_dropout.py", "-k", "recurrent"),
        "test_recurrent_layers_drop_between_their_layers[cpu-bf16-GRU]",
    ),
    Defect(
        "summed_losses_low_precision",
        "adding up a loss in float32",
        ("suites/gradients/test_losses.py",),
        "test_a_loss_is_as_exact_as_its_rule[cpu-bf16-mse-sum]",
    ),
    Defect(
        "addbmm_adds_up_low",
        "adding up batches of products in float32",
        ("suites/gradients/test_reductions.py", "-k", "addbmm"),
        "test_sums_over_features[cpu-bf16-addbmm]",
    ),
    Defect(
        "products_lose_half_a_second_derivative",
        "second derivatives of products",
        ("suites/gradients/test_autograd.py", "-k", "second"),
        "test_second_derivatives[cpu-bf16-bmm]",
    ),
    Defect(
        "padding_rows_of_low_embeddings_get_gradients",
        "padding in low embeddings",
        ("suites/gradients/test_arguments.py", "-k", "embedding"),
        "test_operator_with_arguments[cpu-bf16-embedding of low weights, padding]",
    ),
    Defect(
        "gradients_of_large_tables_are_rounded",
        "the float32 gradient of a large table",
        ("suites/gradients/test_formulas.py", "-k", "read"),
        "test_each_read_of_a_row_counts[cpu-bf16-embedding-of a large table]",
    ),
    Defect(
        "expanded_rows_go_back_once",
        "adding up what comes back to an expanded row",
        ("suites/gradients/test_arguments.py", "-k", "expand"),
        "test_operator_with_arguments[cpu-bf16-expand of a row]",
    ),
    Defect(
        "linear_draws_unseeded",
        "that a step repeats itself",
        ("suites/gradients/test_zoo.py", "-k", "mlp"),
        "test_step[cpu-bf16-mlp]",
    ),
    Defect(
        "linear_gradient_is_long_in_low_python",
        "a branch for low-precision tensors, which the prediction runs, too",
        ("suites/gradients/test_zoo.py", "-k", "mlp"),
        "test_step[cpu-bf16-mlp]",
    ),
    Defect(
        "attention_goes_back_with_another_scale",
        "the gradient of attention's queries",
        ("suites/gradients/test_operators.py", "-k", "attention"),
        "test_operator[cpu-bf16-attention]",
    ),
    Defect(
        "causal_attention_goes_back_unmasked",
        "the mask of long attention going back",
        ("suites/gradients/test_formulas.py", "-k", "attention"),
        "test_operator_is_its_formula[cpu-bf16-attention_long_causal]",
    ),
    Defect(
        "attention_forgets_keys_beyond_512",
        "every key of long attention",
        ("suites/gradients/test_formulas.py", "-k", "attention"),
        "test_operator_is_its_formula[cpu-bf16-attention_long]",
    ),
)
