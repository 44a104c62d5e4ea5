"""Likely causes of an error that a case raises under autocast are the real ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_amp.cases import Case
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.conditions import runs_under
from pytest_amp.numerics.dtypes import check_dtypes
from pytest_amp.numerics.step import does_not_run, run_step
from pytest_amp.precision import BF16, FP16
from tests.observing import unheeded

CPU = Conditions(find_device("cpu"), FP16)


def failure_of(forward: Callable[[nn.Module, Tensor], Tensor], build: Callable[[], nn.Module] | None = None) -> str:
    case = Case("planted", build or (lambda: nn.Linear(8, 8)), lambda: torch.randn(4, 8), forward)
    with pytest.raises(AmpFailure, match="does not run under autocast") as raised, runs_under(case, CPU):
        run_step(case, case.realise(seed=0), CPU.region, seed=0)
    return str(raised.value)


class PartlyHalf(nn.Module):
    """Layer with one float16 weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Parameter(torch.randn(8, 8).half())

    def forward(self, x: Tensor) -> Tensor:
        """Compute a product in a disabled region."""
        y: Tensor = self.first(x)
        with torch.autocast("cpu", enabled=False):
            return y.float() @ self.second


def test_low_parameters_are_named() -> None:
    text = failure_of(lambda model, x: model(x).float().sum(), PartlyHalf)
    assert re.search(r"likely +low-precision parameters \(second is float16\), which should be float32", text)
    assert "custom_fwd" not in text


class Product(torch.autograd.Function):
    """Product that requires one dtype."""

    @staticmethod
    def forward(_context: Any, x: Tensor, y: Tensor) -> Tensor:
        """Multiply without a cast."""
        with torch.autocast("cpu", enabled=False):
            return x @ y

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient unchanged."""
        return gradient, gradient


def test_error_in_an_autograd_function_suggests_custom_fwd() -> None:
    text = failure_of(lambda model, x: Product.apply(x, model(x).mT).float().sum())  # type: ignore[no-untyped-call]
    assert "a torch.autograd.Function that is given tensors of both dtypes: torch.amp.custom_fwd" in text
    assert "(x is float32, y is float16)" in text


def test_operator_without_a_rule_is_the_likely_cause() -> None:
    def outside(model: nn.Module, x: Tensor) -> Tensor:
        low: Tensor = model(x)
        with torch.autocast("cpu", enabled=False):
            return (x @ low.mT).sum()

    text = failure_of(outside)
    assert "an operator without an autocast rule, or in a region that is off" in text
    assert "(x is float32, low is float16)" in text
    assert "custom_fwd" not in text


def test_code_that_refuses_dtypes_is_named() -> None:
    def picky(model: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = model(x)
        if y.dtype != x.dtype:
            raise RuntimeError("one dtype is taken")
        return y.sum()

    text = failure_of(picky)
    assert re.search(
        r"code of the model's own, which refuses what it is given under autocast at test_reasons\.py:\d+", text
    )
    assert "(x is float32, y is float16)" in text


def test_constant_beyond_the_range_is_named() -> None:
    text = failure_of(lambda model, x: model(x).masked_fill(x > 0, -1e9).float().softmax(-1).sum())
    assert "a constant beyond 65504, where float16 ends: torch.finfo(x.dtype).min" in text


def test_matrix_that_rounding_makes_indefinite_is_named() -> None:
    """The covariance of eight inputs that hardly differ is positive-definite in float32 alone."""

    def factorized(model: nn.Module, x: Tensor) -> Tensor:
        points = 1 + x.repeat(2, 1) / 64
        covariance = points @ points.mT + 1e-3 * torch.eye(8)
        result: Tensor = torch.linalg.cholesky(covariance).sum() + model(x).sum()
        return result

    assert "a matrix that products under autocast have rounded is singular, or not" in failure_of(factorized)


def test_change_in_place_is_named() -> None:
    def changed(model: nn.Module, x: Tensor) -> Tensor:
        y: Tensor = model(x).sigmoid()
        if torch.is_autocast_enabled("cpu"):
            y.mul_(2)
        return y.float().sum()

    assert "changes in place what its backward pass needs" in failure_of(changed)


def test_low_model_that_fails_in_float32_names_its_parameters() -> None:
    model = nn.Linear(8, 8).half()
    case = Case("half", lambda: model, lambda: torch.randn(4, 8), lambda m, x: m(x).sum())
    text = str(does_not_run(case, RuntimeError("mat1 and mat2 must have the same dtype"), model))
    assert re.search(r"likely +low-precision parameters \(weight is float16, bias is float16\)", text)
    assert "the model, its batch or its loss" in str(does_not_run(case, RuntimeError("other"), nn.Linear(8, 8)))


class Other(nn.Module):
    """Layer that returns float16, whatever the region."""

    def forward(self, x: Tensor) -> Tensor:
        """Cast to float16."""
        return x.half()


def test_dtype_outside_the_region_is_explained_by_a_cast() -> None:
    case = Case(
        "other", lambda: nn.Sequential(nn.Linear(8, 8), Other()), lambda: torch.randn(4, 8), lambda m, x: m(x).sum()
    )
    with pytest.raises(AmpFailure, match=r"likely +.*it casts to float16, or an extension does: no rule of a bfloat16"):
        check_dtypes(case, Conditions(find_device("cpu"), BF16), {"1": torch.bfloat16}, unheeded)
