"""Planted defects of the checks of an evaluation, of a training step, and of one with several optimizers."""

from __future__ import annotations

from typing import Any

from tests.planted.table import defect, swap


@defect(
    "No metric of an evaluation is harmed, however far it is off",
    caught_by="tests/check/test_evaluation_harm.py::test_metric_that_low_precision_changes_is_an_error",
)
def harm_of_an_evaluation_is_not_measured() -> None:
    swap("pytest_amp.check.evaluation_harm.MetricHarm", "exceeds", lambda *_: False)


@defect(
    "The runs of an evaluation take decisions of their own, which rounding turns over",
    caught_by="tests/check/test_evaluation_harm.py::test_decisions_of_the_first_run_are_replayed",
)
def decisions_of_an_evaluation_are_not_replayed() -> None:
    def taken_again(_self: Any, _name: str, _args: Any, _kwargs: Any, result: Any) -> Any:
        return result

    swap("pytest_amp.check.decisions.Decisions", "decide", taken_again)


@defect(
    "What chance does to a metric counts as harm",
    caught_by="tests/check/test_evaluation_harm.py::test_rounding_and_chance_are_no_harm",
)
def chance_counts_as_harm() -> None:
    swap("pytest_amp.check.evaluation_harm.MetricHarm", "is_beyond", lambda *_: True)


@defect(
    "The linter passes over sums of gradients in low precision",
    caught_by="tests/lint/test_state.py::test_low_sum_of_the_gradients_of_two_micro_batches_is_found[bf16]",
)
def sums_of_gradients_are_not_looked_at() -> None:
    swap("pytest_amp.lint.running_sums", "_adds_gradients", lambda *_: False)


@defect(
    "A failure names no line that writes rounded values into the weights",
    caught_by="tests/training/test_written.py::test_line_that_writes_rounded_weights_is_named",
)
def writers_of_weights_are_not_named() -> None:
    swap("pytest_amp.training.comparison", "writer_of", lambda *_, **__: None)


@defect(
    "A failure of repeated casts names no line that clears the cache",
    caught_by="tests/memory/test_checks.py::test_cleared_weight_cache_is_named",
)
def clearing_of_the_cache_is_not_named() -> None:
    swap("pytest_amp.memory.casts", "_clearing_line", lambda *_: None)


@defect(
    "A step with gradients of a loss before an update passes, although the update changes the scale",
    caught_by=(
        "tests/scaler/test_several_optimizers.py::test_wrong_step_of_several_optimizers_is_reported[updates_between-]"
    ),
)
def updates_between_backward_and_step_pass() -> None:
    swap("pytest_amp.scaler.accumulation._Accumulation", "_is_before_update", lambda *_: False)


@defect(
    "Of several optimizers only the first gets an overflow in its gradients",
    caught_by=(
        "tests/scaler/test_several_optimizers.py::test_wrong_step_of_several_optimizers_is_reported[repairs_gradients-]"
    ),
)
def further_optimizers_get_no_overflow() -> None:
    def nothing(*_: Any) -> tuple[()]:
        return ()

    swap("pytest_amp.scaler.step_check", "_plant_in_the_rest", nothing)


@defect(
    "An inf in one optimizer's gradients skips the step of the other, which check_scaler judges by its own gradients",
    caught_by="tests/scaler/test_several_optimizers.py::test_step_of_several_optimizers_passes[critic_first]",
)
def optimizers_skip_together() -> None:
    from tests.planted.scaler_optimizers import found_inf_shared_by_optimizers

    found_inf_shared_by_optimizers()


@defect(
    "A training goes on from a step that one of two optimizers has skipped, and the other has taken",
    caught_by=(
        "tests/training/test_several_optimizers.py::test_optimizer_that_skips_while_the_other_steps_is_accepted[fp16]"
    ),
)
def trainings_go_on_after_half_a_step() -> None:
    swap("pytest_amp.scaler.watched.WatchedScaler", "skips_in_part", property(lambda _: False))
