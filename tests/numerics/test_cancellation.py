"""Float32's share of an error: measured from the case, and zero if float32 kernels or the model round to less."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_amp.cases import Case, Realised
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions, cancellation, predict, relative_error, run_step
from pytest_amp.numerics.cancellation import DRAWS, STUDENT, float32_errors
from pytest_amp.numerics.gradients import check_gradients
from pytest_amp.numerics.step import Region, Step
from pytest_amp.precision import BF16, FP16
from tests.numerics.planted import kernel
from tests.observing import unheeded

WHERE = Conditions(find_device("cpu"), BF16)


class Two(nn.Module):
    """Well-conditioned head, and before it a norm whose own squares are part of the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        result = self.norm(self.first(x))
        return result, self.head(result.detach())


def loss(model: nn.Module, x: Tensor) -> Tensor:
    result, headed = model(x)
    return result.float().square().mean() + headed.float().square().mean()  # type: ignore[no-any-return]


CASE = Case("two", Two, lambda: torch.randn(4, 8), loss)


def errors(case: Case = CASE) -> dict[str, float]:
    realised = case.realise(seed=0)
    fp32 = run_step(case, realised.on("cpu"), contextlib.nullcontext, seed=0)
    prediction = predict(case, realised, WHERE.device, BF16, seed=0)
    return float32_errors(case, realised, fp32, prediction, WHERE)


def test_cancelling_tensors_have_larger_float32_errors() -> None:
    actual = errors()
    assert actual["head.weight"] < 100 * 2.0**-24
    assert actual["first.weight"] > 100 * actual["head.weight"]


def test_float32_errors_leave_the_model_unchanged() -> None:
    realised = CASE.realise(seed=0)
    before = {name: value.clone() for name, value in realised.model.state_dict().items()}
    fp32 = run_step(CASE, realised.on("cpu"), contextlib.nullcontext, seed=0)
    prediction = predict(CASE, realised, WHERE.device, BF16, seed=0)
    float32_errors(CASE, realised, fp32, prediction, WHERE)
    assert all(torch.equal(value, before[name]) for name, value in realised.model.state_dict().items())


class Moved(nn.Module):
    """Weights of two widths, and zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 16)
        self.wide = nn.Parameter(torch.rand(16, dtype=torch.float64) + 1)
        self.zeros = nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.wide.float() + self.zeros  # type: ignore[no-any-return]


def test_each_draw_moves_float32_weights_to_adjacent_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("moved", Moved, lambda: torch.randn(4, 8), lambda m, x: m(x).square().mean())
    before = case.realise(seed=WHERE.seed).model.state_dict()
    moved: list[dict[str, Tensor]] = []
    steps: list[Step] = []

    def run(case: Case, realised: Realised, region: Region, *, seed: int) -> Step:
        assert seed == WHERE.seed
        moved.append({name: value.clone() for name, value in realised.model.state_dict().items()})
        steps.append(run_step(case, realised, region, seed=seed))
        return steps[-1]

    monkeypatch.setattr(cancellation, "run_step", run)
    realised = case.realise(seed=WHERE.seed)
    first = run_step(case, realised.on("cpu"), contextlib.nullcontext, seed=WHERE.seed)
    prediction = predict(case, realised, WHERE.device, BF16, seed=WHERE.seed)
    actual = float32_errors(case, realised, first, prediction, WHERE)
    assert len(moved) == DRAWS
    weights = [parameters["linear.weight"] for parameters in moved]
    assert len({tuple(weight.flatten().tolist()) for weight in weights}) == DRAWS
    for weight in weights:
        by = (weight.double() / before["linear.weight"].double() - 1) / torch.finfo(torch.float32).eps
        assert by.abs().min() > 0.4
        assert by.abs().max() < 1.6
        assert 0.2 < (by > 0).float().mean() < 0.8
    for parameters in moved:
        assert torch.equal(parameters["wide"], before["wide"])
        assert torch.equal(parameters["zeros"], before["zeros"])
    name = "linear.weight"
    exact, size = prediction.exact.named()[name], prediction.sizes[name]
    result = [relative_error(step.named()[name], exact, scale=size) for step in (first, *steps)]
    assert actual[name] == pytest.approx(STUDENT * math.hypot(*result) / math.sqrt(DRAWS + 1))


def test_low_precision_float32_kernel_yields_no_float32_errors() -> None:
    def ten_bits(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = original(*args, **kwargs)
        return result.to(torch.float16).to(result.dtype) if result.dtype == torch.float32 else result

    assert errors()
    with kernel("addmm", ten_bits):
        assert not errors()


def test_model_with_explicit_rounding_yields_no_float32_errors() -> None:
    def rounded(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).bfloat16().float().square().mean()  # type: ignore[no-any-return]

    assert not errors(Case("own", lambda: nn.Linear(8, 8), lambda: torch.randn(4, 8), rounded))


def test_student_constant_is_the_quantile_of_its_distribution() -> None:
    """Integrate the density of Student's distribution beyond the constant, by Simpson's rule in 1 / t."""
    degrees = DRAWS + 1
    scale = math.gamma((degrees + 1) / 2) / (math.sqrt(degrees * math.pi) * math.gamma(degrees / 2))

    def density(t: float) -> float:
        return scale * math.pow(1 + t * t / degrees, -(degrees + 1) / 2)

    steps, end = 1000, 1 / STUDENT
    at = [density(1 / (end * i / steps)) / (end * i / steps) ** 2 if i else 0.0 for i in range(steps + 1)]
    beyond = end / steps / 3 * (at[0] + at[-1] + 4 * sum(at[1:-1:2]) + 2 * sum(at[2:-1:2]))
    assert 2 * beyond == pytest.approx(1e-4, rel=0.01)


@pytest.mark.parametrize("off", [0.0, 1.5e-3])
def test_float32_that_is_as_coarse_as_fp16_is_red(off: float) -> None:
    """The distance of mixed precision from float32 has both errors: E(fp32, exact) is far below the low roundoff."""

    def scaled(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = original(*args, **kwargs)
        return result * (1 + off) if result.dtype == torch.float32 else result

    case = Case("wide", lambda: nn.Linear(32, 32), lambda: torch.randn(64, 32), lambda m, x: m(x).float().mean())
    failing = pytest.raises(AmpFailure, match="differs from float32 by") if off else contextlib.nullcontext()
    with kernel("addmm", scaled), failing:
        check_gradients(case, Conditions(find_device("cpu"), FP16), unheeded)


class RoundsByItself(nn.Module):
    """Module with explicit casts, with autocast and without."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(x).tanh().half().float() * 1.3)
        return result.half().float()


@pytest.mark.parametrize("seed", range(3))
def test_model_with_explicit_rounding_is_not_reported_as_broken_float32(seed: int) -> None:
    case = Case("own", RoundsByItself, lambda: torch.randn(64, 32), lambda m, x: m(x).square().mean())
    check_gradients(case, Conditions(find_device("cpu"), FP16, seed), unheeded)
