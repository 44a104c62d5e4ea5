"""Planted defects of the linter's rules and of the measures of ``amp.check``: each leaves one of them out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.planted.table import defect, swap


def _nothing(*_args: Any, **_keywords: Any) -> tuple[()]:
    return ()


@defect(
    "The linter passes over means, variances and norms of low-precision values",
    caught_by="tests/lint/test_arithmetic.py::test_wrong_form_is_found[rms norm-bf16]",
)
def statistics_are_not_looked_at() -> None:
    swap("pytest_amp.lint.arithmetic_rules", "_statistics", _nothing)


@defect(
    "The linter passes over differences from a low-precision mean whose squares are float32, as on CUDA",
    caught_by="tests/lint/test_cuda_rules.py::test_form_that_is_wrong_on_cuda_is_found[layer norm-bf16]",
)
def variances_are_not_looked_at() -> None:
    swap("pytest_amp.lint.arithmetic_rules", "_differences", _nothing)


@defect(
    "The linter passes over low-precision squares whose sum is float32, as on CUDA",
    caught_by="tests/lint/test_cuda_rules.py::test_form_that_is_wrong_on_cuda_is_found[root of a sum of squares-bf16]",
)
def low_squares_are_not_looked_at() -> None:
    swap("pytest_amp.lint.arithmetic_rules", "_low_squares", _nothing)


@defect(
    "The linter passes over exponentials and their sum",
    caught_by="tests/lint/test_arithmetic.py::test_wrong_form_is_found[softmax-",
)
def softmax_by_hand_is_not_looked_at() -> None:
    swap("pytest_amp.lint.arithmetic_rules", "_softmax", _nothing)


@defect(
    "The linter passes over logarithms and powers of low-precision values",
    caught_by="tests/lint/test_arithmetic.py::test_wrong_form_is_found[logarithm-",
)
def logarithms_are_not_looked_at() -> None:
    swap("pytest_amp.lint.arithmetic_rules", "_exponentials", _nothing)


@defect(
    "The linter passes over chains of additions and products",
    caught_by="tests/lint/test_arithmetic.py::test_wrong_form_is_found[running sum-bf16]",
)
def running_sums_are_not_looked_at() -> None:
    swap("pytest_amp.lint.arithmetic_rules", "running_sums", _nothing)


@defect(
    "The linter passes over large arguments of sin and cos",
    caught_by="tests/lint/test_arithmetic.py::test_wrong_form_is_found[angles-",
)
def angles_are_not_looked_at() -> None:
    swap("pytest_amp.lint.arithmetic_rules", "_angles", _nothing)


@defect(
    "The linter passes over whole numbers that a cast rounds",
    caught_by="tests/lint/test_arithmetic.py::test_wrong_form_is_found[positions alone-bf16]",
)
def positions_are_not_looked_at() -> None:
    swap("pytest_amp.lint.arithmetic_rules", "_positions", _nothing)


@defect(
    "The linter passes over low-precision terms of a loss",
    caught_by="tests/lint/test_losses.py::test_low_loss_is_found_in_its_line[with_penalty-bf16]",
)
def terms_of_a_loss_are_not_looked_at() -> None:
    swap("pytest_amp.lint.arithmetic_rules", "loss_terms", _nothing)


@defect(
    "The linter passes over float32 values that are rounded and widened again",
    caught_by="tests/lint/test_casts.py::test_rounded_values_are_found[bf16]",
)
def rounded_values_are_not_looked_at() -> None:
    swap("pytest_amp.lint.cast_rules", "rounded_values", _nothing)


@defect(
    "The linter passes over low-precision buffers that are widened where they are used",
    caught_by="tests/lint/test_casts.py::test_rounded_buffer_is_found_in_the_line_that_rounds_it[bf16]",
)
def rounded_buffers_are_not_looked_at() -> None:
    swap("pytest_amp.lint.cast_rules", "rounded_buffers", _nothing)


@defect(
    "The linter passes over casts to float32 without an effect",
    caught_by="tests/lint/test_casts.py::test_useless_widening_is_found[",
)
def useless_widening_is_not_looked_at() -> None:
    swap("pytest_amp.lint.cast_rules", "useless_widening", _nothing)


@defect(
    "The linter passes over casts in a user's backward pass",
    caught_by="tests/lint/test_casts.py::test_backward_pass_that_rounds_is_found[bf16]",
)
def rounded_gradients_are_not_looked_at() -> None:
    swap("pytest_amp.lint.cast_rules", "rounded_gradients", _nothing)


@defect(
    "The linter passes over constants that are zero or infinite in the dtype",
    caught_by="tests/lint/test_casts.py::test_mask_beyond_the_range_is_found_in_its_line",
)
def constants_are_not_looked_at() -> None:
    swap("pytest_amp.lint.cast_rules", "constants", _nothing)


@defect(
    "The linter passes over finite values that become infinite",
    caught_by="tests/lint/test_casts.py::test_mask_that_overflows_in_a_cast_is_an_error_if_a_row_has_it_whole[0.0-Severity.WARNING]",
)
def overflows_are_not_looked_at() -> None:
    swap("pytest_amp.lint.cast_rules", "overflows", _nothing)


@defect(
    "The linter passes over casts of the batch in a training step",
    caught_by="tests/lint/test_casts.py::test_cast_of_the_batch_in_a_step_is_found[bf16]",
)
def casts_of_a_batch_are_not_looked_at() -> None:
    swap("pytest_amp.lint.cast_rules", "input_casts", _nothing)


@defect(
    "The linter passes over trained parameters in a low dtype",
    caught_by="tests/lint/test_state.py::test_cast_in_the_step_is_an_error[bf16]",
)
def low_parameters_are_not_looked_at() -> None:
    swap("pytest_amp.lint.state_rules", "low_parameters", _nothing)


@defect(
    "The linter passes over low-precision buffers that a step updates",
    caught_by="tests/lint/test_state.py::test_low_buffer_that_is_updated_is_found[bf16]",
)
def low_buffers_are_not_looked_at() -> None:
    swap("pytest_amp.lint.state_rules", "low_buffers", _nothing)


@defect(
    "The linter passes over float32 buffers whose update is computed in the low dtype",
    caught_by="tests/lint/test_state.py::test_low_update_of_a_float32_buffer_is_found[bf16]",
)
def rounded_updates_are_not_looked_at() -> None:
    swap("pytest_amp.lint.state_rules", "rounded_updates", _nothing)


@defect(
    "The linter passes over low-precision state of an optimizer",
    caught_by="tests/lint/test_state.py::test_low_optimizer_state_is_found[bf16]",
)
def low_states_are_not_looked_at() -> None:
    swap("pytest_amp.lint.state_rules", "low_states", _nothing)


@defect(
    "The linter passes over wide logarithms of low-precision probabilities",
    caught_by="tests/lint/test_arithmetic.py::test_wrong_form_is_found[logarithm of rounded probabilities-",
)
def logarithms_of_rounded_probabilities_are_not_looked_at() -> None:
    swap("pytest_amp.lint.arithmetic_rules", "rounded_probabilities", _nothing)


@defect(
    "The linter passes over low-precision averages that a step keeps",
    caught_by="tests/lint/test_state.py::test_low_average_is_found[",
)
def low_averages_are_not_looked_at() -> None:
    swap("pytest_amp.lint.state_rules", "low_averages", _nothing)


@defect(
    "The linter passes over a loss outside of the region",
    caught_by="tests/lint/test_regions.py::test_wrong_step_is_an_error_in_its_line[",
)
def losses_outside_are_not_looked_at() -> None:
    swap("pytest_amp.lint.state_rules", "loss_outside", _nothing)


@defect(
    "The linter passes over low-precision metrics",
    caught_by="tests/lint/test_state.py::test_metric_of_a_low_reduction_is_found[mean-",
)
def metrics_are_not_looked_at() -> None:
    swap("pytest_amp.lint.state_rules", "metrics", _nothing)


@defect(
    "The linter passes over an evaluation that casts the model",
    caught_by="tests/lint/test_state.py::test_evaluation_that_casts_the_model_is_an_error[bf16]",
)
def changed_parameters_are_not_looked_at() -> None:
    swap("pytest_amp.lint.state_rules", "changed_parameters", _nothing)


@defect(
    "The linter passes over an unscaled loss beside a scaled one",
    caught_by="tests/lint/test_state.py::test_unscaled_gradients_beside_scaled_ones_are_an_error[unscaled_loss]",
)
def mixed_gradients_are_not_looked_at() -> None:
    swap("pytest_amp.lint.state_rules", "mixed_gradients", _nothing)


@defect(
    "The linter passes over a step without any gradient",
    caught_by="tests/lint/test_state.py::test_step_without_gradients_is_an_error[bf16]",
)
def idle_steps_are_not_looked_at() -> None:
    swap("pytest_amp.lint.state_rules", "idle_steps", _nothing)


@defect(
    "The linter passes over regions of the model's own",
    caught_by="tests/lint/test_regions.py::test_decorated_forward_is_a_region",
)
def own_regions_are_not_looked_at() -> None:
    swap("pytest_amp.lint.regions_rules", "region_suspects", _nothing)


@defect(
    "The linter passes over a step in which nothing is low",
    caught_by="tests/lint/test_regions.py::test_model_of_float64_computes_nothing_low[bf16]",
)
def nothing_low_is_not_looked_at() -> None:
    swap("pytest_amp.lint.regions_rules", "nothing_low", _nothing)


@defect(
    "The linter passes over the regions of a training step",
    caught_by="tests/lint/test_regions.py::test_step_of_a_trainer_is_named_with_its_calling_lines",
)
def steps_without_a_region_are_not_looked_at() -> None:
    swap("pytest_amp.lint.regions_rules", "step_suspects", _nothing)


@defect(
    "The linter passes over the precision of an evaluation",
    caught_by="tests/lint/test_regions.py::test_evaluation_in_another_precision_is_found[bf16]",
)
def evaluations_are_not_looked_at() -> None:
    swap("pytest_amp.lint.regions_rules", "evaluation_suspects", _nothing)


@defect(
    "The harm of a step is 1, whatever its errors are",
    caught_by="tests/check/test_harm.py::test_harmful_cast_is_named[bf16]",
)
def harm_of_a_step_is_always_one() -> None:
    swap("pytest_amp.check.harm", "ratio_of", lambda *_: 1.0)


@defect(
    "No function is left out by itself: the harm of each is 1",
    caught_by="tests/check/test_harm.py::test_harmful_cast_is_named[bf16]",
)
def harm_of_one_function_is_not_measured() -> None:
    swap("pytest_amp.check.harm", "_of_one", lambda *_: 1.0)


@defect(
    "The errors of outputs are not counted as harm",
    caught_by="tests/check/test_harm.py::test_cast_that_harms_only_an_output_is_named[bf16]",
    replaces="pytest_amp.check.harm.ratio_of",
)
def harm_of_outputs_is_not_counted(original: Any, left: Any, right: Any, u: float) -> Any:
    return original(replace(left, outputs=0.0), replace(right, outputs=0.0), u)


@defect(
    "The error of the loss is not counted as harm",
    caught_by="tests/check/test_harm.py::test_mean_of_losses_in_fp16_is_harmful",
)
def harm_of_a_loss_is_not_counted() -> None:
    swap("pytest_amp.check.harm", "loss_ratio", lambda *_: 1.0)


@defect(
    "A training does not compare its first gradients with those of float32",
    caught_by="tests/training/test_any_loss.py::test_wrong_gradient_of_one_layer_is_named",
)
def first_gradients_are_not_compared() -> None:
    swap("pytest_amp.training.comparison", "check_gradients", lambda *_: None)


@defect(
    "A training does not look for gradients that are added to those of a step in the same iteration",
    caught_by="tests/training/test_accumulation.py::test_step_for_each_part_of_an_accumulated_gradient_is_named[bf16]",
)
def gradients_of_a_step_are_not_looked_at() -> None:
    swap("pytest_amp.scaler.accumulation._Accumulation", "before_step", lambda *_, **__: None)


@defect(
    "Reports name no finding of amp.check",
    caught_by="tests/report/test_findings.py::test_findings_link_to_their_page_in_html_and_markdown",
)
def pages_of_findings_are_not_linked() -> None:
    swap("pytest_amp.report.causes", "findings_in", _nothing)
