"""Planted defects in trainings: masters, states, losses, averages, resumes and evaluations that are not float32's."""

from __future__ import annotations

from tests.planted.defect import Defect

TRAINING = (
    Defect(
        "weights_kept_in_bf16",
        "master weights in float32",
        ("suites/training/test_float32_state.py",),
        "test_parameters_and_buffers_stay_float32[cpu-bf16-images]",
    ),
    Defect(
        "moments_kept_in_bf16",
        "the optimizer's state in float32",
        ("suites/training/test_float32_state.py",),
        "test_the_state_of_optimizers_stays_float32[cpu-bf16-Adam, foreach]",
    ),
    Defect(
        "loss_divided_in_fp16",
        "dividing a loss in float32",
        ("suites/training/test_loops.py",),
        "test_the_loss_of_a_micro_batch_is_divided_in_float32[cpu-bf16-3]",
    ),
    Defect(
        "resumes_without_its_scaler",
        "resuming with the scaler",
        ("suites/training/test_resume.py",),
        "test_a_resumed_run_is_the_one_without_a_break[cpu-bf16]",
    ),
    Defect(
        "generator_state_is_not_restored",
        "resuming with the generator",
        ("suites/training/test_resume.py",),
        "test_a_resumed_run_is_the_one_without_a_break[cpu-bf16]",
    ),
    Defect(
        "exponential_average_in_bf16",
        "averaging weights in float32",
        ("suites/training/test_loops.py",),
        "test_averaged_weights_follow_float32[cpu-bf16]",
    ),
    Defect(
        "evaluation_leaves_autocast_on",
        "leaving a region under no_grad",
        ("suites/training/test_evaluation.py",),
        "test_evaluation_leaves_autocast_off_and_weights_alone[cpu-bf16-no_grad]",
    ),
    Defect(
        "evaluation_casts_the_weights",
        "leaving weights alone in evaluation",
        ("suites/training/test_evaluation.py",),
        "test_evaluation_leaves_autocast_off_and_weights_alone[cpu-bf16-inference_mode]",
    ),
    Defect(
        "micro_batches_add_up_in_bf16",
        "adding up micro-batches in float32",
        ("suites/training/test_loops.py",),
        "test_micro_batches_add_up_in_float32[cpu-bf16]",
    ),
    Defect(
        "weight_gradients_five_percent_short",
        "where a training goes",
        ("suites/training/test_loss_curves.py",),
        "test_the_loss_stays_in_the_band_of_float32[cpu-bf16-images]",
    ),
    Defect(
        "unscale_is_put_off",
        "unscaling before clipping",
        (
            "suites/training/test_loops.py",
            "--amp-dtype=fp16",
        ),
        "test_a_loop_goes_where_float32_goes[cpu-fp16-clipped]",
    ),
    Defect(
        "loaded_moments_are_rounded",
        "resuming with float32 moments",
        ("suites/training/test_resume.py",),
        "test_a_resumed_run_is_the_one_without_a_break[cpu-bf16]",
    ),
    Defect(
        "rare_optimizers_round_their_state",
        "any optimizer's state in float32",
        ("suites/training/test_float32_state.py",),
        "test_the_state_of_optimizers_stays_float32[cpu-bf16-NAdam]",
    ),
    Defect(
        "scale_is_told_a_step_late",
        "telling a skipped step by the scale",
        ("suites/training/test_loops.py",),
        "test_schedule_and_average_stand_still_where_a_step_is_skipped[cpu-bf16]",
    ),
    Defect(
        "small_updates_of_large_weights_are_lost",
        "small updates of large weights",
        ("suites/training/test_updates.py", "-k", "AdamW"),
        "test_small_updates_arrive[cpu-bf16-AdamW, loop-large]",
    ),
)
