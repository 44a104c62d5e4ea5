"""Parameters, buffers, optimizer state, averages and metrics in a low dtype, together with the correct form."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_amp.lint import Severity
from tests.lint.linted import (
    HIDDEN,
    INPUTS,
    OUTPUTS,
    case,
    kinds,
    line_of,
    network,
    of_case,
    of_evaluation,
    of_step,
    update,
    usual_step,
)

BOTH = pytest.mark.parametrize("dtype", ["bf16", "fp16"])


def cast() -> nn.Module:
    model = network()
    return model.to(torch.bfloat16)


def one_layer() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUTPUTS, dtype=torch.bfloat16))


def default_dtype() -> nn.Module:
    torch.set_default_dtype(torch.bfloat16)
    try:
        return nn.Linear(INPUTS, OUTPUTS)
    finally:
        torch.set_default_dtype(torch.float32)


@BOTH
@pytest.mark.parametrize(("build", "offset"), [(cast, 2), (one_layer, 1), (default_dtype, 3)])
def test_low_parameters_are_an_error_in_the_line_that_casts(
    build: Callable[[], nn.Module], offset: int, dtype: str
) -> None:
    (finding,) = [entry for entry in of_case(case(build), dtype) if entry.severity is Severity.ERROR]
    assert finding.kind == "low-parameters"
    assert finding.site == f"tests/lint/test_state.py:{line_of(build, offset)}"


@BOTH
def test_cast_in_the_step_is_an_error(dtype: str) -> None:
    def train(iteration: Any) -> None:
        iteration.model.to(torch.bfloat16)
        usual_step(iteration)

    (finding,) = of_step(train, dtype)
    assert (finding.kind, finding.severity) == ("low-parameters", Severity.ERROR)
    assert finding.site == f"tests/lint/test_state.py:{line_of(train, 1)}"


class Averaging(nn.Module):
    """Network with a running average of its features."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, OUTPUTS)
        self.register_buffer("average", torch.zeros(HIDDEN, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        with torch.no_grad():
            self.get_buffer("average").lerp_(x.mean(0).to(self.get_buffer("average").dtype), 0.1)
        result: Tensor = self.leave(x)
        return result


@BOTH
def test_low_buffer_that_is_updated_is_found(dtype: str) -> None:
    (finding,) = of_case(case(lambda: Averaging(torch.bfloat16)), dtype)
    assert finding.kind == "low-buffer"
    assert finding.site == f"tests/lint/test_state.py:{line_of(Averaging.__init__, 3)}"
    assert of_case(case(lambda: Averaging(torch.float32)), dtype) == ()


class Centring(nn.Module):
    """Network with a float32 average of its features that is computed in a selectable dtype."""

    def __init__(self, widen: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.enter, self.leave, self.widen = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, OUTPUTS), widen
        self.register_buffer("average", torch.zeros(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        average = self.get_buffer("average")
        with torch.no_grad():
            term = self.widen(x).mean(0)
            average.copy_(0.9 * average.to(term.dtype) + 0.1 * term)
        result: Tensor = self.leave(x)
        return result


@BOTH
def test_low_update_of_a_float32_buffer_is_found(dtype: str) -> None:
    finding = next(
        finding for finding in of_case(case(lambda: Centring(lambda x: x)), dtype) if finding.kind == "low-buffer"
    )
    assert finding.site == f"tests/lint/test_state.py:{line_of(Centring.forward, 5)}"
    assert "the update of the buffer average is computed in" in finding.message
    assert of_case(case(lambda: Centring(Tensor.float)), dtype) == ()


class Momentum(torch.optim.Optimizer):
    """Momentum in a selectable dtype."""

    def __init__(self, parameters: Iterable[nn.Parameter], dtype: torch.dtype) -> None:
        super().__init__(parameters, {"lr": 0.01, "dtype": dtype})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter, dtype=group["dtype"])
                momentum = 0.9 * state["momentum"].float() + parameter.grad
                state["momentum"] = momentum.to(group["dtype"])
                parameter.sub_(state["momentum"].float(), alpha=group["lr"])


@BOTH
def test_low_optimizer_state_is_found(dtype: str) -> None:
    (finding,) = of_step(usual_step, dtype, optimizer=lambda parameters: Momentum(parameters, torch.bfloat16))
    assert finding.kind == "low-optimizer-state"
    assert "momentum" in finding.message
    assert finding.site.startswith("tests/lint/test_state.py:")


@BOTH
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda parameters: Momentum(parameters, torch.float32),
        lambda parameters: Momentum(parameters, torch.int8),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        None,
    ],
    ids=["float32", "int8", "SGD", "default"],
)
def test_other_optimizers_yield_no_finding(optimizer: Any, dtype: str) -> None:
    assert of_step(usual_step, dtype, optimizer=optimizer) == ()


def weights(iteration: Any, dtype: torch.dtype) -> list[Tensor]:
    return [parameter.detach().clone().to(dtype) for parameter in iteration.model.parameters()]


def by_lerp(iteration: Any, dtype: torch.dtype) -> None:
    usual_step(iteration)
    retained = iteration.kept.setdefault("mean", weights(iteration, dtype))
    for mean, weight in zip(retained, weights(iteration, dtype), strict=True):
        mean.lerp_(weight, 0.1)


def by_copy(iteration: Any, dtype: torch.dtype) -> None:
    usual_step(iteration)
    retained = iteration.kept.setdefault("mean", weights(iteration, dtype))
    for mean, weight in zip(retained, weights(iteration, torch.float32), strict=True):
        mean.copy_(0.9 * mean.float() + 0.1 * weight)


def by_foreach(iteration: Any, dtype: torch.dtype) -> None:
    usual_step(iteration)
    retained = iteration.kept.setdefault("mean", weights(iteration, dtype))
    torch._foreach_lerp_(retained, weights(iteration, dtype), 0.1)


def by_replacement(iteration: Any, dtype: torch.dtype) -> None:
    usual_step(iteration)
    new = weights(iteration, dtype)
    old = iteration.kept.get("mean", new)
    iteration.kept["mean"] = [0.9 * mean + 0.1 * weight for mean, weight in zip(old, new, strict=True)]


def in_a_module(iteration: Any, dtype: torch.dtype) -> None:
    usual_step(iteration)
    if iteration.index == 0:
        iteration.kept["mean"] = copy.deepcopy(iteration.model).to(dtype)
    with torch.no_grad():
        for mean, weight in zip(iteration.kept["mean"].parameters(), iteration.model.parameters(), strict=True):
            mean.mul_(0.9).add_(weight.to(dtype), alpha=0.1)


AVERAGES = pytest.mark.parametrize("train", [by_lerp, by_copy, by_foreach, by_replacement, in_a_module])


@BOTH
@AVERAGES
def test_low_average_is_found(train: Callable[[Any, torch.dtype], None], dtype: str) -> None:
    actual = of_step(lambda iteration: train(iteration, torch.bfloat16), dtype)
    assert set(kinds(actual)) == {"low-average"}
    assert all("bfloat16" in finding.message for finding in actual)
    assert all(finding.site.startswith("tests/lint/test_state.py:") for finding in actual)


@BOTH
@AVERAGES
def test_average_in_float32_yields_no_finding(train: Callable[[Any, torch.dtype], None], dtype: str) -> None:
    assert of_step(lambda iteration: train(iteration, torch.float32), dtype) == ()


@BOTH
def test_snapshot_that_is_no_average_yields_no_finding(dtype: str) -> None:
    def train(iteration: Any) -> None:
        iteration.optimizer.zero_grad()
        with iteration.autocast():
            scores = iteration.model(iteration.batch["x"])
            loss = functional.cross_entropy(scores.float(), iteration.batch["target"])
        update(iteration, loss)
        iteration.kept["scores"] = scores.detach()

    assert of_step(train, dtype) == ()


@BOTH
def test_low_metric_is_found_in_the_line_that_accumulates_it(dtype: str) -> None:
    def evaluate(evaluation: Any) -> dict[str, Tensor]:
        with torch.no_grad(), evaluation.autocast():
            scores = evaluation.model(evaluation.batch["x"])
        total = torch.zeros((), dtype=scores.dtype)
        for part in scores.float().split(8):
            total += part.mean()
        return {"score": total / 3}

    (finding,) = of_evaluation(evaluate, dtype)
    assert finding.kind == "low-metric"
    assert finding.site == f"tests/lint/test_state.py:{line_of(evaluate, 5)}"


@BOTH
@pytest.mark.parametrize(
    "metric",
    [
        lambda scores, _: scores.mean(),
        lambda scores, target: 1 - ((scores - target) ** 2).sum() / ((target - target.mean()) ** 2).sum(),
        lambda scores, target: ((scores - target) ** 2).mean().sqrt(),
        lambda scores, target: 1 / (scores - target).square().mean(),
    ],
    ids=["mean", "share of variance", "root", "inverse"],
)
def test_metric_of_a_low_reduction_is_found(metric: Callable[[Tensor, Tensor], Tensor], dtype: str) -> None:
    def evaluate(evaluation: Any) -> dict[str, float]:
        with torch.no_grad(), evaluation.autocast():
            scores = evaluation.model(evaluation.batch["x"])
            target = evaluation.batch["x"][:, :OUTPUTS].to(scores.dtype)
            return {"score": metric(scores, target).item()}

    assert kinds(of_evaluation(evaluate, dtype)) == ["low-metric"]


@BOTH
def test_evaluation_that_casts_the_model_is_an_error(dtype: str) -> None:
    def evaluate(evaluation: Any) -> dict[str, Tensor]:
        model = evaluation.model.bfloat16()
        with torch.no_grad():
            return {"score": model(evaluation.batch["x"].to(torch.bfloat16)).float().mean()}

    actual = of_evaluation(evaluate, dtype)
    assert actual[0].kind == "low-parameters"
    assert actual[0].severity is Severity.ERROR


@BOTH
def test_step_without_gradients_is_an_error(dtype: str) -> None:
    def train(iteration: Any) -> None:
        with iteration.autocast():
            loss = iteration.loss()
        iteration.scaler.scale(loss).backward()
        iteration.optimizer.zero_grad(set_to_none=False)
        iteration.scaler.step(iteration.optimizer)
        iteration.scaler.update()

    (finding,) = of_step(train, dtype)
    assert (finding.kind, finding.severity) == ("no-gradient", Severity.ERROR)
    assert finding.site == f"tests/lint/test_state.py:{line_of(train, 5)}"


def penalty(model: nn.Module) -> Tensor:
    return torch.stack([parameter.square().sum() for parameter in model.parameters()]).sum()


def unscaled_loss(iteration: Any) -> None:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss = iteration.loss()
    penalty(iteration.model).backward()  # type: ignore[no-untyped-call]
    update(iteration, loss)


def unscaled_term(iteration: Any) -> None:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss = iteration.loss()
    (iteration.scaler.scale(loss) / 2 + penalty(iteration.model)).backward()
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


@pytest.mark.parametrize("train", [unscaled_loss, unscaled_term])
def test_unscaled_gradients_beside_scaled_ones_are_an_error(train: Callable[[Any], None]) -> None:
    (finding,) = of_step(train, "fp16")
    assert (finding.kind, finding.severity) == ("mixed-gradients", Severity.ERROR)
    assert finding.site == f"tests/lint/test_state.py:{line_of(train, 4)}"
    assert of_step(train, "bf16") == ()


def test_two_scaled_losses_yield_no_finding() -> None:
    def train(iteration: Any) -> None:
        iteration.optimizer.zero_grad()
        with iteration.autocast():
            loss = iteration.loss()
        iteration.scaler.scale(penalty(iteration.model)).backward()
        update(iteration, loss)

    assert of_step(train, "fp16") == ()


def in_micro_batches(iteration: Any, dtype: torch.dtype | None) -> None:
    """Add the gradients of two micro-batches in buffers of a dtype, by default that of autocast."""
    weights = list(iteration.model.parameters())
    sums = [torch.zeros_like(weight, dtype=dtype or iteration.precision.dtype) for weight in weights]
    for _ in range(2):
        iteration.optimizer.zero_grad()
        with iteration.autocast():
            loss = iteration.loss()
        iteration.scaler.scale(loss / 2).backward()
        for total, weight in zip(sums, weights, strict=True):
            total.add_(weight.grad.to(total.dtype))
    for total, weight in zip(sums, weights, strict=True):
        weight.grad.copy_(total)
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


@BOTH
def test_low_sum_of_the_gradients_of_two_micro_batches_is_found(dtype: str) -> None:
    (finding,) = of_step(lambda iteration: in_micro_batches(iteration, None), dtype)
    assert finding.kind == "low-running-sum"
    assert finding.site == f"tests/lint/test_state.py:{line_of(in_micro_batches, 10)}"
    assert "gradients of several backward passes" in finding.message
    assert of_step(lambda iteration: in_micro_batches(iteration, torch.float32), dtype) == ()
