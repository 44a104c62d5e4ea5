"""Planted defects of the checks of an evaluation and of a training step in ``amp.check``."""

from __future__ import annotations

from typing import Any

from tests.planted.table import defect, swap


@defect(
    "No metric of an evaluation is harmed, however far it is off",
    caught_by="tests/check/test_evaluation_harm.py::test_metric_that_low_precision_changes_is_an_error",
)
def harm_of_an_evaluation_is_not_measured() -> None:
    from pytest_amp.check import evaluation_harm

    swap(evaluation_harm.MetricHarm, "exceeds", lambda *_: False)


@defect(
    "The runs of an evaluation take decisions of their own, which rounding turns over",
    caught_by="tests/check/test_evaluation_harm.py::test_decisions_of_the_first_run_are_replayed",
)
def decisions_of_an_evaluation_are_not_replayed() -> None:
    from pytest_amp.check import decisions

    def taken_again(_self: Any, _name: str, _args: Any, _kwargs: Any, result: Any) -> Any:
        return result

    swap(decisions.Decisions, "decide", taken_again)


@defect(
    "What chance does to a metric counts as harm",
    caught_by="tests/check/test_evaluation_harm.py::test_rounding_and_chance_are_no_harm",
)
def chance_counts_as_harm() -> None:
    from pytest_amp.check import evaluation_harm

    swap(evaluation_harm.MetricHarm, "is_beyond", lambda *_: True)


@defect(
    "The linter passes over sums of gradients in low precision",
    caught_by="tests/lint/test_state.py::test_low_sum_of_the_gradients_of_two_micro_batches_is_found[bf16]",
)
def sums_of_gradients_are_not_looked_at() -> None:
    from pytest_amp.lint import running_sums

    swap(running_sums, "_adds_gradients", lambda *_: False)


@defect(
    "A failure names no line that writes rounded values into the weights",
    caught_by="tests/training/test_written.py::test_line_that_writes_rounded_weights_is_named",
)
def writers_of_weights_are_not_named() -> None:
    from pytest_amp.training import comparison

    swap(comparison, "writer_of", lambda *_, **__: None)


@defect(
    "A failure of repeated casts names no line that clears the cache",
    caught_by="tests/memory/test_checks.py::test_cleared_weight_cache_is_named",
)
def clearing_of_the_cache_is_not_named() -> None:
    from pytest_amp.memory import casts

    swap(casts, "_clearing_line", lambda *_: None)
