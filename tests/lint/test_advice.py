"""Messages and advice of findings: they say what was found, and advise what fits it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.lint.linted import around, case, kinds, line_of, network, of_case, of_evaluation

BOTH = pytest.mark.parametrize("dtype", ["bf16", "fp16"])


def bits(evaluation: Any) -> dict[str, float]:
    with torch.no_grad(), evaluation.autocast():
        logits = evaluation.model(evaluation.batch["x"])
    chance = logits.float().softmax(-1).amax(-1).mean().to(logits.dtype)
    return {"bits": -chance.log2().item()}


def accuracy(evaluation: Any) -> dict[str, Tensor]:
    with torch.no_grad(), evaluation.autocast():
        logits = evaluation.model(evaluation.batch["x"])
    return {"accuracy": (logits.argmax(-1) == evaluation.batch["target"]).to(logits.dtype).mean()}


def narrowed(evaluation: Any) -> dict[str, Tensor]:
    with torch.no_grad(), evaluation.autocast():
        loss = evaluation.loss()
    return {"loss": loss.to(torch.bfloat16)}


@BOTH
def test_logarithm_of_a_metric_is_not_advised_a_softmax(dtype: str) -> None:
    (finding,) = [finding for finding in of_evaluation(bits, dtype) if finding.kind == "low-log"]
    assert "softmax" not in finding.advice
    assert "float32" in finding.advice


@BOTH
def test_logarithm_of_values_that_are_no_probabilities_is_not_advised_a_softmax(dtype: str) -> None:
    (finding,) = of_case(around(lambda x: x * (x.abs() + 1).log()), dtype)
    assert finding.kind == "low-log"
    assert "softmax" not in finding.advice


@BOTH
def test_logarithm_of_probabilities_is_advised_a_function_of_logits(dtype: str) -> None:
    (finding,) = of_case(around(lambda x: (x.sigmoid() * 0.5 + 0.1).log()), dtype)
    assert finding.kind == "low-log"
    assert "logsigmoid" in finding.advice


@BOTH
def test_metric_that_is_computed_or_cast_is_not_advised_to_be_added_up(dtype: str) -> None:
    (computed,) = of_evaluation(accuracy, dtype)
    assert computed.kind == "low-metric"
    assert computed.advice.startswith("Compute the metric in float32")
    (cast,) = of_evaluation(narrowed, dtype)
    assert "it is cast to that dtype" in cast.message
    assert "remove the cast" in cast.advice


def test_bound_that_rounds_to_one_is_not_advised_a_larger_epsilon() -> None:
    (bound,) = [
        finding
        for finding in of_case(around(lambda x: x.sigmoid().clamp(max=1 - 1e-7)))
        if finding.kind == "vanished-epsilon"
    ]
    assert "1e-4" not in bound.advice


def test_divisor_beyond_the_range_is_no_mask() -> None:
    (finding,) = [
        finding for finding in of_case(around(lambda x: x / 90000.0), "fp16") if finding.kind == "constant-out-of-range"
    ]
    assert "a factor or divisor of 90000" in finding.message
    assert "masked_fill" not in finding.advice


def rounded_on_the_way(x: Tensor) -> Tensor:
    x = x.float() * 1.1
    return x.bfloat16().float().sin()


def test_cast_whose_values_no_weight_uses_does_not_mention_weights() -> None:
    (finding,) = of_case(around(rounded_on_the_way), "fp16")
    assert finding.kind == "own-cast"
    assert finding.site == f"tests/lint/test_advice.py:{line_of(rounded_on_the_way, 2)}"
    assert "weights" not in finding.message


def beyond_a_table(x: Tensor) -> Tensor:
    rows = torch.arange(3000, 3000 + len(x)).to(x.dtype)
    table = torch.randn(1000, x.shape[1])
    return x + table[(rows * 31 % 1000).long()]


def test_rounded_indices_are_reported_if_the_step_raises_by_them() -> None:
    findings = of_case(around(beyond_a_table), "fp16")
    (finding,) = [finding for finding in findings if finding.kind == "rounded-positions"]
    assert finding.site == f"tests/lint/test_advice.py:{line_of(beyond_a_table, 1)}"


def test_exception_without_a_finding_is_passed_on() -> None:
    def refuse(x: Tensor) -> Tensor:
        if x.dtype is torch.float32:
            return x
        raise RuntimeError("no kernel")

    with pytest.raises(RuntimeError, match="no kernel"):
        of_case(around(refuse), "fp16")


def test_case_of_the_advice_is_green_without_a_mistake() -> None:
    assert not kinds(of_case(case()))


def low_by_default() -> nn.Module:
    torch.set_default_dtype(torch.bfloat16)
    try:
        return network()
    finally:
        torch.set_default_dtype(torch.float32)


def test_function_that_builds_low_parameters_by_a_default_dtype_is_named() -> None:
    (finding,) = [finding for finding in of_case(case(low_by_default)) if finding.kind == "low-parameters"]
    assert f"built by low_by_default (tests/lint/test_advice.py:{line_of(low_by_default)})" in finding.message
