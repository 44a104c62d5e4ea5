"""Planted defects in GradScaler: check, unscale, step, update, order of calls, state dict, optimizers."""

from __future__ import annotations

from tests.planted.defect import Defect

SCALER = (
    Defect(
        "scaler_steps_despite_inf",
        "skipping a step with an inf",
        ("suites/scaler/test_overflow.py",),
        "test_a_non_finite_gradient_skips_the_step[cpu-bf16-inf]",
    ),
    Defect(
        "scale_never_backs_off",
        "backing off",
        ("suites/scaler/test_update_rule.py",),
        "test_the_scale_backs_off_at_once[cpu-bf16-inf]",
    ),
    Defect(
        "nan_not_detected",
        "finding NaN",
        ("suites/scaler/test_overflow.py",),
        "test_a_non_finite_gradient_skips_the_step[cpu-bf16-nan]",
    ),
    Defect(
        "only_first_gradient_checked",
        "checking every gradient",
        ("suites/scaler/test_overflow.py",),
        "test_one_bad_element_anywhere_is_found[cpu-bf16-last-inf]",
    ),
    Defect(
        "growth_one_step_late",
        "the growth interval",
        ("suites/scaler/test_update_rule.py",),
        "test_the_scale_grows_after_exactly_the_interval[cpu-bf16]",
    ),
    Defect(
        "scale_never_grows",
        "growth",
        ("suites/scaler/test_update_rule.py",),
        "test_the_scale_grows_after_exactly_the_interval[cpu-bf16]",
    ),
    Defect(
        "scale_grows_to_inf",
        "the largest finite scale",
        ("suites/scaler/test_update_rule.py",),
        "test_growth_stops_at_the_largest_finite_scale[cpu-bf16]",
    ),
    Defect(
        "overflow_keeps_growth_tracker",
        "restarting the count of clean steps",
        ("suites/scaler/test_update_rule.py",),
        "test_the_scale_backs_off_at_once[cpu-bf16-inf]",
    ),
    Defect(
        "setters_ignored",
        "the setters of factors and interval",
        ("suites/scaler/test_update_rule.py",),
        "test_setters_take_effect_at_the_next_update[cpu-bf16]",
    ),
    Defect(
        "update_ignores_new_scale",
        "update(new_scale)",
        ("suites/scaler/test_update_rule.py",),
        "test_a_new_scale_is_taken[cpu-bf16-float]",
    ),
    Defect(
        "unscale_divides_twice",
        "dividing once",
        ("suites/scaler/test_unscale.py",),
        "test_unscaling_is_exact[cpu-bf16-2^3]",
    ),
    Defect(
        "unscale_does_not_divide",
        "dividing at all",
        ("suites/scaler/test_unscale.py",),
        "test_unscaling_is_exact[cpu-bf16-2^3]",
    ),
    Defect(
        "inverse_scale_inexact",
        "the inverse of the scale",
        ("suites/scaler/test_unscale.py",),
        "test_unscaling_multiplies_by_the_rounded_inverse[cpu-bf16-3.0]",
    ),
    Defect(
        "unscale_twice_permitted",
        "the error for a second unscale_",
        ("suites/scaler/test_order.py",),
        "test_the_order_of_calls[cpu-bf16-unscale_ unscale_]",
    ),
    Defect(
        "step_twice_permitted",
        "the error for a second step",
        ("suites/scaler/test_order.py",),
        "test_the_order_of_calls[cpu-bf16-step step]",
    ),
    Defect(
        "step_without_gradients_permitted",
        "the error for a step without gradients",
        ("suites/scaler/test_order.py",),
        "test_an_optimizer_without_gradients[cpu-bf16-step]",
    ),
    Defect(
        "found_inf_shared_by_optimizers",
        "found_inf of each optimizer",
        ("suites/scaler/test_several_optimizers.py",),
        "test_only_the_optimizer_that_overflowed_skips[cpu-bf16-unscale_ then step-in order-first]",
    ),
    Defect(
        "scaler_backs_off_once_per_optimizer",
        "one backoff for several optimizers",
        ("suites/scaler/test_several_optimizers.py",),
        "test_an_overflow_of_either_backs_off_once[cpu-bf16]",
    ),
    Defect(
        "state_dict_loses_growth_tracker",
        "saving the growth tracker",
        ("suites/scaler/test_state_dict.py",),
        "test_a_resumed_run_is_the_one_without[cpu-bf16-after 4-state_dict]",
    ),
    Defect(
        "load_state_dict_loses_scale",
        "loading the scale",
        ("suites/scaler/test_state_dict.py",),
        "test_loading_overwrites_everything[cpu-bf16-in the middle of a run]",
    ),
    Defect(
        "disabled_scaler_scales",
        "a disabled scaler",
        ("suites/scaler/test_disabled.py",),
        "test_an_iteration_is_the_plain_one[cpu-bf16]",
    ),
    Defect(
        "skipped_step_resets_momentum",
        "the momentum after a skipped step",
        ("suites/scaler/test_overflow.py",),
        "test_a_skipped_step_leaves_momentum_alone[cpu-bf16-inf]",
    ),
    Defect(
        "fused_optimizer_ignores_found_inf",
        "found_inf in fused optimizers",
        ("suites/scaler/test_optimizers.py::test_a_skipped_step_changes_nothing",),
        "test_a_skipped_step_changes_nothing[cpu-bf16-AdamW, fused-inf-step]",
    ),
    Defect(
        "only_some_gradients_checked",
        "checking more gradients than one launch takes",
        ("suites/scaler/test_large_and_many.py",),
        "test_one_bad_element_among_all_skips_all[cpu-bf16-large-inf]",
    ),
    Defect(
        "large_gradients_unscaled_by_way_of_bf16",
        "unscaling large gradients exactly",
        ("suites/scaler/test_large_and_many.py",),
        "test_every_gradient_is_unscaled_exactly[cpu-bf16-float32]",
    ),
    Defect(
        "float64_loss_narrowed",
        "scaling a float64 loss in float64",
        ("suites/scaler/test_large_and_many.py",),
        "test_a_scaled_loss_keeps_its_dtype[cpu-bf16-float64]",
    ),
)
