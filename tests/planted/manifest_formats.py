"""Planted defects in number formats: rounding, saturation, TF32, and what torch says of its own support."""

from __future__ import annotations

from tests.planted.defect import Defect

FORMATS = (
    Defect(
        "conversions_truncate",
        "rounding to nearest even",
        ("suites/formats/test_rounding.py",),
        "test_ties_and_their_neighbours[cpu-bf16-bf16-to]",
    ),
    Defect(
        "fp16_saturates",
        "overflow to infinity",
        ("suites/formats/test_thresholds.py", "--amp-dtype=fp16"),
        "test_what_is_too_large[cpu-fp16-fp16-to]",
    ),
    Defect(
        "e4m3_overflows_the_other_way",
        "what becomes of numbers that are too large for E4M3",
        ("suites/formats/test_thresholds.py",),
        "test_what_is_too_large[cpu-bf16-float8_e4m3fn-to]",
    ),
    Defect(
        "bf16_support_is_claimed",
        "saying what works",
        ("suites/formats/test_support.py",),
        "test_cuda_supports_bf16_where_it_says_so[cpu-bf16-asked]",
    ),
    Defect(
        "tf32_left_on",
        "IEEE products by default",
        ("suites/formats/test_float32_products.py",),
        "test_the_defaults[cpu-fp32]",
    ),
    Defect(
        "float32_products_in_ten_bits",
        "float32 products on a CPU",
        ("suites/formats/test_float32_products.py",),
        "test_a_cpu_product_sees_every_bit[cpu-fp32]",
    ),
    Defect(
        "quantised_to_the_nearest_above",
        "ties of what is quantised",
        ("suites/formats/test_quantisation.py",),
        "test_the_affine_map_by_hand[cpu-bf16]",
    ),
    Defect(
        "channels_quantised_towards_below",
        "what is quantised by channel",
        ("suites/formats/test_quantisation.py",),
        "test_quantised_channels[cpu-bf16-0]",
    ),
    Defect(
        "low_dtypes_promote_to_bf16",
        "the dtype of both low ones",
        ("suites/formats/test_promotion.py",),
        "test_two_dtypes_make_the_one_that_holds_both[cpu-bf16-promote_types-float16]",
    ),
    Defect(
        "joined_low_tensors_are_fp16",
        "joining tensors of both low dtypes",
        ("suites/formats/test_promotion.py",),
        "test_two_dtypes_make_the_one_that_holds_both[cpu-bf16-cat-float16]",
    ),
    Defect(
        "float8_weights_truncate",
        "rounding weights that are kept in float8",
        ("suites/formats/test_float8_weights.py",),
        "test_weights_are_rounded_once[cpu-bf16-float8_e4m3fn-Module.to-float32-outside]",
    ),
    Defect(
        "scaled_products_forget_a_scale",
        "both scales of a product of float8 numbers",
        ("suites/formats/test_float8_weights.py",),
        "test_scaled_products_are_those_of_their_values[cpu-bf16-float8_e4m3fn-low]",
    ),
)
