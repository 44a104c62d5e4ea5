"""Harm of an evaluation's own low precision is measured by its metrics, and chance is no harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_amp.cases import Case
from pytest_amp.check.collect import Collector
from pytest_amp.check.decisions import Decisions, DivergedError
from pytest_amp.check.entry import Entry
from pytest_amp.check.plan import Plan
from pytest_amp.devices import find_device
from pytest_amp.lint import Severity
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.precision import BF16, FP16, Precision

pytestmark = pytest.mark.usefixtures("one_thread")
BOTH = pytest.mark.parametrize("precision", [BF16, FP16], ids=["bf16", "fp16"])
Evaluate = Callable[[Any], Any]


def batch() -> dict[str, Tensor]:
    x = torch.randn(1200, 8)
    return {"x": x, "y": x[:, :4].argmax(-1)}


def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch["x"]).float(), batch["y"])


CASE = Case("evaluated", lambda: nn.Linear(8, 4), batch, loss)


def entries_of(evaluate: Evaluate, precision: Precision) -> list[Entry]:
    return measured(evaluate, precision).entries


def measured(evaluate: Evaluate, precision: Precision) -> Collector:
    collector = Collector([])
    where = Conditions(find_device("cpu"), precision)
    plan = Plan(CASE, where, collector, train=None, evaluate=evaluate, optimizer=None)
    plan.lint()
    plan.measure_evaluation()
    return collector


def scores_of(evaluation: Any) -> Tensor:
    evaluation.model.eval()
    with torch.no_grad(), evaluation.autocast():
        scores: Tensor = evaluation.model(evaluation.batch["x"])
    return scores


def accuracy(evaluation: Any) -> dict[str, Tensor]:
    """Return the accuracy in thousandths, whose sum stops growing in low precision."""
    scores = scores_of(evaluation)
    hits = scores.argmax(-1) == evaluation.batch["y"]
    total = torch.zeros((), dtype=scores.dtype)
    for part in torch.split(hits.to(scores.dtype), 2):
        total = total + 60 * part.sum()
    return {"accuracy": total.float() / len(hits) / 60}


def overflowing(evaluation: Any) -> dict[str, Tensor]:
    """Return a mean whose sum is beyond the range of float16."""
    scores = scores_of(evaluation)
    total = torch.zeros((), dtype=torch.float16)
    for _ in range(80):
        total += torch.full_like(scores, 2000.0, dtype=torch.float16)[0, 0]
    return {"mean": total.float() / 80}


def below_zero(evaluation: Any) -> dict[str, Tensor]:
    """Return a difference that is zero, of which float16 has an infinite part."""
    return {"difference": overflowing(evaluation)["mean"] * 80 - 160000}


def number_in_a_tuple(evaluation: Any) -> tuple[float, float]:
    return 1.0, accuracy(evaluation)["accuracy"].item()


def number_in_a_dict(evaluation: Any) -> dict[str, dict[str, float]]:
    return {"validation": {"accuracy": accuracy(evaluation)["accuracy"].item()}}


def percentage(evaluation: Any) -> dict[str, Tensor]:
    """Return an accuracy in rounded per cent, far from that without low precision."""
    return {"accuracy": torch.round(1000 * accuracy(evaluation)["accuracy"]) / 10}


@BOTH
@pytest.mark.parametrize("evaluate", [accuracy, overflowing, number_in_a_tuple, number_in_a_dict])
def test_metric_that_low_precision_changes_is_an_error(evaluate: Evaluate, precision: Precision) -> None:
    errors = [entry for entry in entries_of(evaluate, precision) if entry.is_error]
    assert errors
    assert errors[0].kind == "low-running-sum"
    assert "test_evaluation_harm.py:" in errors[0].site
    assert any("without this low precision" in text for label, text in errors[0].parts if label == "harm")


def test_rounded_metric_is_an_error_if_it_is_more_than_a_step_off() -> None:
    errors = [entry for entry in entries_of(percentage, BF16) if entry.is_error]
    assert any("without this low precision" in text for label, text in errors[0].parts if label == "harm")


def test_infinite_metric_is_an_error_where_it_should_be_zero() -> None:
    errors = [entry for entry in entries_of(below_zero, FP16) if entry.is_error]
    assert any("without this low precision" in text for label, text in errors[0].parts if label == "harm")


def rounded(evaluation: Any) -> dict[str, Tensor]:
    """Return metrics that are computed in float32 and rounded at last."""
    scores = scores_of(evaluation)
    error = functional.cross_entropy(scores.float(), evaluation.batch["y"])
    return {"loss": error.to(scores.dtype), "accuracy": (scores.argmax(-1) == evaluation.batch["y"]).float().mean()}


def at_a_border(evaluation: Any) -> dict[str, Tensor]:
    """Return an accuracy of low-precision probabilities, many of which are equal."""
    scores = scores_of(evaluation) * 0.001 + 1
    exponentials = scores.exp()
    probabilities = exponentials / exponentials.sum(-1, keepdim=True)
    hits = probabilities.argmax(-1) == evaluation.batch["y"]
    sure = probabilities.amax(-1) > 0.25
    return {"accuracy": hits.float().mean(), "sure": sure.float().mean()}


def cancelling(evaluation: Any) -> dict[str, Tensor]:
    """Return a mean of both signs, which rounding elsewhere moves as much."""
    scores = scores_of(evaluation)
    total = torch.zeros((), dtype=scores.dtype)
    for part in torch.split(scores - scores.mean(), 60):
        total = total + part.sum()
    return {"mean": total.float() / scores.numel()}


def compared(evaluation: Any) -> dict[str, Tensor]:
    """Return what a rounding of the scores costs, which is what the evaluation measures."""
    with torch.no_grad():
        scores = evaluation.model(evaluation.batch["x"])
    return {"cost": (scores.bfloat16().float() - scores).square().mean()}


def compared_beside_a_mean(evaluation: Any) -> dict[str, Tensor]:
    """Return what a rounding costs, and a metric with a finding, which that rounding does not reach."""
    return {**compared(evaluation), "mean": scores_of(evaluation).exp().mean()}


def written(evaluation: Any) -> dict[str, Tensor]:
    """Return a mean of low-precision values that a float32 product was written into."""
    scores = scores_of(evaluation)
    torch.mul(scores.float(), 0.25, out=scores)
    return {"mean": scores.exp().mean()}


@BOTH
@pytest.mark.parametrize("evaluate", [rounded, at_a_border, cancelling, compared, compared_beside_a_mean, written])
def test_rounding_and_chance_are_no_harm(evaluate: Evaluate, precision: Precision) -> None:
    assert [entry for entry in entries_of(evaluate, precision) if entry.severity is Severity.ERROR] == []


def test_decisions_of_the_first_run_are_replayed() -> None:
    decisions = Decisions()
    near = torch.tensor([1.0, 1.0 + 1e-6])
    decisions.decide("argmax", (near,), {}, near.argmax())
    decisions.replays = True
    decisions.begin()
    assert decisions.decide("argmax", (-near,), {}, (-near).argmax()).item() == 1
    with pytest.raises(DivergedError):
        decisions.decide("argmax", (near,), {}, near.argmax())


def of_low_hits_alone(evaluation: Any) -> dict[str, Tensor]:
    """Return a low-precision mean of hits, and raise if these are float32."""
    hits = (scores_of(evaluation).argmax(-1) == evaluation.batch["y"]).to(torch.bfloat16) * 1
    if hits.dtype is not torch.bfloat16:
        raise ValueError("hits are counted in bfloat16")
    return {"accuracy": hits.mean()}


@BOTH
def test_harm_that_cannot_be_measured_is_no_pass(precision: Precision) -> None:
    collector = measured(of_low_hits_alone, precision)
    assert [entry.kind for entry in collector.entries] == ["low-metric"]
    (line,) = [line for line in collector.lines if line.check == "harm: evaluate"]
    assert line.verdict == "cannot tell"
    assert "hits are counted in bfloat16" in line.detail


def float32_evaluation(evaluation: Any) -> dict[str, Tensor]:
    with torch.no_grad():
        return {"loss": evaluation.loss()}


def test_evaluation_without_low_arithmetic_has_no_line_about_harm() -> None:
    collector = measured(float32_evaluation, BF16)
    assert [entry.kind for entry in collector.entries] == ["evaluation-precision"]
    assert [line.check for line in collector.lines if line.check.startswith("harm")] == []
