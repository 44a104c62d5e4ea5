"""Steps in low-precision dtypes without rounding: differences that the Python code of a model causes."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as f

from pytest_amp.cases import Case
from pytest_amp.numerics import program
from pytest_amp.precision import BF16, FP16, Precision
from tests.numerics.test_check_gradients import CPU, failure, run

LOW = (torch.bfloat16, torch.float16)
BOTH = pytest.mark.parametrize("precision", [BF16, FP16], ids=["bf16", "fp16"])
pytestmark = pytest.mark.usefixtures("one_thread")


class LongGradient(torch.autograd.Function):
    """Identity with a gradient that is 5 % too large in low precision."""

    @staticmethod
    def forward(_context: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_context: Any, gradient: Tensor) -> Tensor:
        return gradient * 1.05 if gradient.dtype in LOW else gradient


class Incomplete(torch.autograd.Function):
    """Softmax whose gradient lacks its second term in low precision: float32 computes the first one on the way."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        result = x.float().softmax(-1)
        context.save_for_backward(result)
        return result.to(x.dtype)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (result,) = context.saved_tensors
        if gradient.dtype in LOW:
            first: Tensor = result.to(gradient.dtype) * gradient
            return first
        product = result * gradient
        both: Tensor = product - result * product.sum(-1, keepdim=True)
        return both


def tilted(x: Tensor) -> Tensor:
    return x * 1.05 if x.dtype in LOW else x


def slightly_tilted(x: Tensor) -> Tensor:
    return x * 1.0001 if x.dtype in LOW else x


def masked_softmax(x: Tensor) -> Tensor:
    """Compute rows, one of them all padding, with the mask constant of the input's dtype."""
    mask = torch.ones(len(x), len(x), dtype=torch.bool).tril()
    mask[3] = False
    scores = (x @ x.mT).masked_fill(~mask, torch.finfo(x.dtype).min)
    return scores.softmax(-1) @ x


def low_softmax(x: Tensor) -> Tensor:
    exponentials = (x - x.amax(-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(-1, keepdim=True)


class Between(nn.Module):
    """Model with ``function`` between two linear layers."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.first, self.last, self.function = nn.Linear(16, 16), nn.Linear(16, 4), function

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.function(self.first(x)))
        return result


def case_of(function: Any) -> Case:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).float().square().mean()  # type: ignore[no-any-return]

    return Case("between", lambda: Between(function), lambda: torch.randn(12, 16), loss)


def line_of(function: Any, code: str) -> str:
    lines, first = inspect.getsourcelines(function)
    return f"test_program.py:{next(first + index for index, line in enumerate(lines) if code in line)}"


@BOTH
@pytest.mark.parametrize("function", [tilted, LongGradient.apply], ids=["forward", "backward"])
def test_wrong_branch_for_low_precision_is_red_with_its_line(function: Any, precision: Precision) -> None:
    text = failure(case_of(function), CPU, precision)
    assert "before anything is rounded" in text
    assert "mul in the model (Between)" in text
    assert line_of(tilted if function is tilted else LongGradient, "1.05") in text


@BOTH
def test_low_branch_that_returns_an_intermediate_result_is_named(precision: Precision) -> None:
    text = failure(case_of(Incomplete.apply), CPU, precision)
    assert "before anything is rounded" in text
    assert line_of(Incomplete, "result.to(gradient.dtype)") in text


@BOTH
@pytest.mark.parametrize("function", [low_softmax, masked_softmax, f.gelu])
def test_rounding_of_the_model_is_no_error_of_its_program(function: Any, precision: Precision) -> None:
    assert "between/summary.own_error" not in run(case_of(function), precision=precision)


def test_difference_below_the_rounding_is_observed() -> None:
    observed = run(case_of(slightly_tilted))
    assert 5e-5 < float(observed["between/summary.own_error"]) < 5e-4


def test_step_that_cannot_be_followed_has_no_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(*_: Any) -> None:
        """Stand in for a step that the oracle cannot follow without rounding."""

    monkeypatch.setattr(program, "_without_rounding", forget)
    observed = run(case_of(slightly_tilted))
    assert "between/summary.own_error" not in observed
