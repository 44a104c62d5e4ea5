"""Of whom an error is told that torch raises within a check: of the case, if a step of it alone raises as well."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_amp.cases import Case
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure, Misuse
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.running import ToldOf
from pytest_amp.numerics.step import DoesNotRun
from pytest_amp.precision import BF16

WHERE = Conditions(find_device("cpu"), BF16)


def case(refuses: tuple[bool, ...]) -> Case:
    """It refuses to run with autocast on (True), off (False), both, or never."""

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if torch.is_autocast_enabled("cpu") in refuses:
            raise RuntimeError("no kernel for this dtype")
        return model(x).float().square().mean()  # type: ignore[no-any-return]

    return Case("it", lambda: nn.Linear(2, 2), lambda: torch.ones(1, 2), loss)


def test_a_case_that_does_not_run_in_float32_is_misuse() -> None:
    with (
        pytest.raises(DoesNotRun, match="it does not run in float32, without autocast"),
        ToldOf(case((True, False)), WHERE),
    ):
        raise RuntimeError("of the check")


def test_a_case_that_does_not_run_under_autocast_is_a_failure() -> None:
    with pytest.raises(AmpFailure, match="it does not run under autocast"), ToldOf(case((True,)), WHERE):
        raise RuntimeError("of the check")


@pytest.mark.parametrize("refuses", [(), (False,)], ids=["never", "without a region"])
def test_what_a_case_that_runs_did_not_raise_goes_on(refuses: tuple[bool, ...]) -> None:
    """A case that runs within a region only is no fault of its own."""
    with pytest.raises(RuntimeError, match="of the check"), ToldOf(case(refuses), WHERE):
        raise RuntimeError("of the check")


@pytest.mark.parametrize("error", [DoesNotRun("said already"), Misuse("said already"), TypeError("said already")])
def test_what_is_told_already_and_what_is_none_of_torchs_goes_on(error: Exception) -> None:
    """Whether the case runs is not asked then."""
    with pytest.raises(type(error), match=r"^said already$"), ToldOf(case((True,)), WHERE):
        raise error
