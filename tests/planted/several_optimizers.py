"""Planted defects of the checks of a training step with several optimizers."""

from __future__ import annotations

from typing import Any

from tests.planted.table import defect, swap


@defect(
    "A step with gradients of a loss before an update passes, although the update changes the scale",
    caught_by=(
        "tests/scaler/test_several_optimizers.py::test_wrong_step_of_several_optimizers_is_reported[updates_between-]"
    ),
)
def updates_between_backward_and_step_pass() -> None:
    from pytest_amp.scaler import accumulation

    swap(accumulation._Accumulation, "_is_before_update", lambda *_: False)


@defect(
    "Of several optimizers only the first gets an overflow in its gradients",
    caught_by=(
        "tests/scaler/test_several_optimizers.py::test_wrong_step_of_several_optimizers_is_reported[repairs_gradients-]"
    ),
)
def further_optimizers_get_no_overflow() -> None:
    from pytest_amp.scaler import step_check

    def nothing(*_: Any) -> tuple[()]:
        return ()

    swap(step_check, "_plant_in_the_rest", nothing)


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
    from pytest_amp.scaler.watched import WatchedScaler

    swap(WatchedScaler, "skips_in_part", property(lambda _: False))
