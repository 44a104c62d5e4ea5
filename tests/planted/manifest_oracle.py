"""Planted defects in kernels, below autocast: the dtypes are right, and only float64 values tell."""

from __future__ import annotations

from tests.planted.defect import Defect

OPERATORS = "suites/gradients/test_long_operators.py"
WIDER = "suites/gradients/test_wider_zoo.py"
ZOO = "suites/gradients/test_zoo.py"

ORACLE = (
    Defect(
        "mean_accumulates_in_low_precision",
        "sums of an operator without a rule in float32",
        (OPERATORS, "-k", "mean"),
        "test_sums_do_not_lose_with_length[cpu-bf16-mean]",
    ),
    Defect(
        "index_add_loses_duplicates",
        "every row that is added to a place",
        (OPERATORS, "-k", "index_add"),
        "test_sums_do_not_lose_with_length[cpu-bf16-index_add]",
    ),
    Defect(
        "index_put_loses_duplicates",
        "every number that is added to a place by its index",
        ("suites/gradients/test_arguments.py", "-k", "index_put"),
        "test_operator_with_arguments[cpu-bf16-index_put, accumulating]",
    ),
    Defect(
        "gelu_rounds_twice",
        "one rounding of a function",
        (OPERATORS, "-k", "gelu"),
        "test_elementwise_functions_round_as_their_model[cpu-bf16-gelu]",
    ),
    Defect(
        "gelu_gradient_three_per_cent_off",
        "the size of a gradient",
        (ZOO, "-k", "test_step and mlp"),
        "test_step[cpu-bf16-mlp]",
    ),
    Defect(
        "gelu_two_per_cent_off",
        "the size of a result, whatever float32 makes of it",
        (OPERATORS, "-k", "gelu"),
        "test_elementwise_functions_round_as_their_model[cpu-bf16-gelu]",
    ),
    Defect(
        "cumprod_in_low_precision",
        "a product that is kept in float32",
        (OPERATORS, "-k", "cumprod"),
        "test_sums_do_not_lose_with_length[cpu-bf16-cumprod]",
    ),
    Defect(
        "unfold_keeps_the_last_window",
        "every window that a pixel is in",
        (OPERATORS, "-k", "unfold"),
        "test_sums_do_not_lose_with_length[cpu-bf16-unfold]",
    ),
    Defect(
        "places_of_pixels_are_low",
        "where a result of an interpolation lies",
        (OPERATORS, "-k", "interpolate_to_a_size"),
        "test_sums_do_not_lose_with_length[cpu-bf16-interpolate_to_a_size]",
    ),
    Defect(
        "mse_kernel_is_hollow",
        "the values of a float32 loss",
        (OPERATORS, "-k", "mse"),
        "test_losses_and_their_gradients[cpu-bf16-mse]",
    ),
    Defect(
        "log_softmax_of_float32_in_low_precision",
        "softmax in float32 where the rule says so",
        (ZOO, "-k", "test_step and mlp"),
        "test_step[cpu-bf16-mlp]",
    ),
    Defect(
        "mm_loses_sums_going_back",
        "sums in float32 in the backward pass",
        (WIDER, "-k", "adapters"),
        "test_step[cpu-bf16-adapters]",
    ),
    Defect(
        "smooth_l1_kernel_rounded",
        "float32 of an operator with a rule, in a small sample",
        ("suites/gradients/test_registered_operators.py", "-k", "smooth_l1"),
        "test_operator_with_a_rule[cpu-bf16-smooth_l1_loss]",
    ),
    Defect(
        "avg_pool_adds_in_low_precision",
        "a mean of numbers whose sum is beyond the range",
        ("suites/gradients/test_edges.py", "-k", "avg_pool", "--amp-dtype=fp16"),
        "test_edges_are_finite[cpu-fp16-avg_pool_beyond_the_range]",
    ),
    Defect(
        "products_of_fp16_by_way_of_bf16",
        "the three bits that fp16 has more",
        (WIDER, "-k", "real_errors and loss_mse"),
        "test_real_errors_differ_by_their_bits[cpu-bf16-loss_mse]",
    ),
    Defect(
        "products_are_rounded",
        "a product by torch.prod in float32",
        ("suites/gradients/test_hollow.py", "-k", "prod"),
        "test_functions_of_float32_are_not_rounded[cpu-bf16-prod]",
    ),
    Defect(
        "products_of_all_forget_the_last",
        "every factor of a whole tensor's product",
        ("suites/gradients/test_formulas.py", "-k", "prod"),
        "test_operator_is_its_formula[cpu-bf16-prod_of_all]",
    ),
    Defect(
        "low_products_overlook_half",
        "every factor of a low product",
        (OPERATORS, "-k", "product"),
        "test_products_outside_of_a_region_round_as_their_model[cpu-bf16-of rows]",
    ),
    Defect(
        "unpooled_maxima_lose_a_channel",
        "maxima that are put back where they were",
        ("suites/gradients/test_modules.py", "-k", "MaxUnpool"),
        "test_module[cpu-bf16-MaxUnpool2d]",
    ),
    Defect(
        "rare_classes_learn_half",
        "gradients of an adaptive softmax's clusters",
        ("suites/gradients/test_modules.py", "-k", "adaptive_softmax"),
        "test_an_adaptive_softmax_learns_of_rare_classes[cpu-bf16-low]",
    ),
)
