"""Subject that a check names for an error: the case, if its step alone raises, too, or other code of the test."""

from __future__ import annotations

import re
import unittest

import pytest
import torch
from torch import nn

from pytest_amp.cases import Case
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure, AmpUsageError
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.running import ErrorsOfCase, ErrorsOfFunction
from pytest_amp.numerics.step import DoesNotRun
from pytest_amp.precision import BF16
from pytest_amp.torch_private import PrivateApiGone

WHERE = Conditions(find_device("cpu"), BF16)


def case(refuses: tuple[bool, ...]) -> Case:
    """Return a case that refuses to run with autocast on (True), off (False), both, or never."""

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if torch.is_autocast_enabled("cpu") in refuses:
            raise RuntimeError("no kernel for this dtype")
        return model(x).float().square().mean()  # type: ignore[no-any-return]

    return Case("it", lambda: nn.Linear(2, 2), lambda: torch.ones(1, 2), loss)


ERRORS = [RuntimeError, ValueError, KeyError, AssertionError]


@pytest.mark.parametrize("kind", ERRORS)
def test_case_that_does_not_run_in_float32_is_a_separate_failure(kind: type[Exception]) -> None:
    with (
        pytest.raises(DoesNotRun, match="it does not run in float32, without autocast") as raised,
        ErrorsOfCase(case((True, False)), WHERE),
    ):
        raise kind("of the check")
    labels = [line.split()[0] for line in str(raised.value).splitlines()]
    assert labels == ["AmpFailure:", "expected", "now", "likely"]
    assert re.search(r"now       RuntimeError \(test_running\.py:\d+\): no kernel for this dtype", str(raised.value))


@pytest.mark.parametrize("kind", ERRORS)
def test_case_that_does_not_run_under_autocast_is_a_failure(kind: type[Exception]) -> None:
    with pytest.raises(AmpFailure, match="it does not run under autocast"), ErrorsOfCase(case((True,)), WHERE):
        raise kind("of the check")


@pytest.mark.parametrize("kind", ERRORS)
def test_error_of_the_check_itself_propagates(kind: type[Exception]) -> None:
    with pytest.raises(kind, match="of the check"), ErrorsOfCase(case(()), WHERE):
        raise kind("of the check")


def raises(error: BaseException) -> None:
    """Raise ``error`` like a training step of a test."""
    raise error


class Unprintable(Exception):  # the name of a project's error
    """Error without words."""

    def __str__(self) -> str:
        raise LookupError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("of the step"), r"RuntimeError \(test_running.py:\d+\): of the step, on torch"),
        (KeyError("loss"), r"KeyError \(test_running.py:\d+\): 'loss', on torch"),
        (AssertionError(), r"AssertionError \(test_running.py:\d+\), on torch"),
        (Unprintable(), r"Unprintable \(test_running.py:\d+\): str\(\) raised LookupError, on torch"),
    ],
    ids=["runtime", "key", "assertion", "unprintable"],
)
def test_error_of_other_test_code_is_a_failure(error: Exception, words: str) -> None:
    with pytest.raises(AmpFailure, match=words) as raised, ErrorsOfCase(case(()), WHERE):
        raises(error)
    assert f"it: code that the check calls raised {type(error).__name__}" in str(raised.value)


def test_library_error_names_the_calling_line_of_the_project() -> None:
    with pytest.raises(AmpFailure, match=r"\(version.py:\d+, called at test_running.py:\d+\)"), ErrorsOfFunction("it"):
        pytest.importorskip("packaging.version").Version("no version")


@pytest.mark.parametrize(
    "error",
    [
        DoesNotRun("said already"),
        AmpUsageError("said already"),
        AmpFailure("said already"),
        PrivateApiGone("torch.gone"),
        pytest.skip.Exception("not here"),
        pytest.fail.Exception("red"),
        pytest.xfail.Exception("known"),
        pytest.exit.Exception("enough"),
        unittest.SkipTest("not here"),
        KeyboardInterrupt(),
        SystemExit(1),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize(
    "block", [ErrorsOfCase(case((True,)), WHERE), ErrorsOfFunction("it")], ids=["case", "function"]
)
def test_exceptions_other_than_errors_of_a_case_propagate(
    error: BaseException, block: ErrorsOfCase | ErrorsOfFunction
) -> None:
    """A step of the case does not run then."""
    with pytest.raises(type(error)) as raised, block:
        raises(error)
    assert raised.value is error


def test_error_with_a_case_that_needs_a_region_propagates() -> None:
    with pytest.raises(RuntimeError, match="of the check"), ErrorsOfCase(case((False,)), WHERE):
        raise RuntimeError("of the check")
