"""Planted defects in autocast's kernels: another rule, another dtype, a cast too many or too few, a kernel too many."""

from __future__ import annotations

from tests.planted.defect import Defect

CUDA = "--amp-device=fake:cuda"
REGISTERED = "suites/rules/test_registered.py"
HAND_CAST = "suites/rules/test_hand_cast.py"
LEFT_ALONE = "suites/rules/test_left_alone.py"

RULES = (
    Defect(
        "layer_norm_low_precision", "layer_norm in float32", (REGISTERED, CUDA), "test_rule[fake-cuda-bf16-layer_norm]"
    ),
    Defect("cat_stack_narrow", "promotion of joined tensors", (REGISTERED,), "test_rule[cpu-bf16-cat]"),
    Defect(
        "binary_cross_entropy_low_precision",
        "the refusal of binary_cross_entropy",
        ("suites/rules/test_banned.py", CUDA),
        "test_it_is_refused_with_the_name_of_the_alternative[fake-cuda-bf16]",
    ),
    Defect(
        "softmax_left_float32_list",
        "softmax in float32",
        (REGISTERED, CUDA),
        "test_rule[fake-cuda-bf16-softmax.int]",
    ),
    Defect("mm_ignores_autocast_dtype", "the autocast dtype of mm", (REGISTERED,), "test_rule[cpu-bf16-mm]"),
    Defect("linear_falls_through", "the kernel of linear", (REGISTERED,), "test_rule[cpu-bf16-linear]"),
    Defect(
        "stft_falls_through",
        "a kernel that nothing but the dispatcher shows",
        (REGISTERED,),
        "test_no_operator_is_new_or_gone[cpu-bf16]",
    ),
    Defect("exp_gone", "the list of operators", (REGISTERED, CUDA), "test_no_operator_is_new_or_gone[fake-cuda-bf16]"),
    Defect("relu_has_a_kernel", "the list of operators", (REGISTERED,), "test_no_operator_is_new_or_gone[cpu-bf16]"),
    Defect(
        "mm_out_has_a_kernel",
        "out= overloads without a kernel",
        (REGISTERED,),
        "test_in_place_and_out_overloads_have_no_kernel[cpu-bf16]",
    ),
    Defect(
        "matmul_casts_through_float16",
        "one cast, straight to the dtype",
        (HAND_CAST,),
        "test_does_what_casting_by_hand_does[cpu-bf16-matmul]",
    ),
    Defect(
        "addmm_forgets_its_bias",
        "the cast of every argument",
        (HAND_CAST,),
        "test_does_what_casting_by_hand_does[cpu-bf16-addmm]",
    ),
    Defect(
        "mse_loss_is_hollow",
        "bits of a float32 result",
        (HAND_CAST,),
        "test_does_what_casting_by_hand_does[cpu-bf16-mse_loss]",
    ),
    Defect(
        "cat_promotes_to_the_first",
        "promotion in every order",
        (HAND_CAST,),
        "test_mixed_arguments_are_promoted_in_every_order[cpu-bf16-cat]",
    ),
    Defect(
        "sum_ignores_dtype",
        "an explicit dtype",
        (HAND_CAST, CUDA),
        "test_an_explicit_dtype_is_respected[fake-cuda-bf16-sum]",
    ),
    Defect(
        "conv2d_casts_float64",
        "float64 arguments",
        (LEFT_ALONE,),
        "test_other_dtypes_and_other_devices[cpu-bf16-conv2d]",
    ),
    Defect(
        "bmm_casts_other_devices",
        "tensors on another device",
        (LEFT_ALONE,),
        "test_other_dtypes_and_other_devices[cpu-bf16-bmm]",
    ),
    Defect(
        "sigmoid_asks_autocast",
        "operators without a kernel",
        (LEFT_ALONE,),
        "test_operators_without_a_kernel[cpu-bf16]",
    ),
    Defect(
        "softmax_of_columns_low_on_xpu",
        "a rule for every dimension",
        (HAND_CAST, "--amp-device=fake:xpu", "-k", "softmax"),
        "test_does_what_casting_by_hand_does[fake-xpu-bf16-softmax.int]",
    ),
    Defect(
        "city_block_distances_rounded",
        "a rule for every order of a norm",
        (HAND_CAST, "-k", "cdist"),
        "test_does_what_casting_by_hand_does[cpu-bf16-cdist]",
    ),
)
