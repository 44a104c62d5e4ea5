"""Constants and overflows in a training step's and an evaluation's own code, compared with the same code in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pytest_amp.lint import Severity
from tests.lint.linted import of_evaluation, of_step, update
from tests.lint.test_casts import GUARDS, hidden, inverse_degrees


def of_scores(use: Callable[[Tensor], Tensor]) -> tuple[Callable[[Any], None], Callable[[Any], dict[str, Tensor]]]:
    """Return a step and an evaluation that compute with low-precision scores by themselves."""

    def train(iteration: Any) -> None:
        iteration.optimizer.zero_grad()
        with iteration.autocast():
            scores = use(iteration.model(iteration.batch["x"]))
            loss = functional.cross_entropy(scores.float(), iteration.batch["target"])
        update(iteration, loss)

    def evaluate(evaluation: Any) -> dict[str, Tensor]:
        with torch.no_grad(), evaluation.autocast():
            scores = use(evaluation.model(evaluation.batch["x"]))
        return {"loss": functional.cross_entropy(scores.float(), evaluation.batch["target"])}

    return train, evaluate


OWN_CODE = {
    "epsilon": (GUARDS["add"], "vanished-epsilon", Severity.WARNING),
    "mask": (lambda x: hidden(x, -1e9), "constant-out-of-range", Severity.WARNING),
    "overflow": (lambda x: x + (x * 1000 + 300).square().clamp(max=1), "overflow", Severity.ERROR),
}


@pytest.mark.parametrize("name", OWN_CODE)
def test_constant_or_overflow_in_a_step_or_an_evaluation_is_found(name: str) -> None:
    use, kind, severity = OWN_CODE[name]
    train, evaluate = of_scores(use)
    for actual in (of_step(train, "fp16"), of_evaluation(evaluate, "fp16")):
        assert [(finding.kind, finding.severity) for finding in actual] == [(kind, severity)]
    assert of_step(train) == of_evaluation(evaluate) == ()


def test_infinity_of_a_step_that_is_infinite_in_float32_is_no_overflow() -> None:
    train, evaluate = of_scores(lambda x: inverse_degrees(x, 1))
    assert of_step(train, "fp16") == of_evaluation(evaluate, "fp16") == ()


def test_scaled_loss_beyond_float16_is_no_overflow_of_the_step() -> None:
    def train(iteration: Any) -> None:
        iteration.optimizer.zero_grad()
        with iteration.autocast():
            loss = iteration.model(iteration.batch["x"]).square().mean() * 1000
        update(iteration, loss)

    assert [finding.kind for finding in of_step(train, "fp16")] == ["low-loss"]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_input_is_cast_for_the_model_and_a_target_for_its_output(dtype: str) -> None:
    def of_images(evaluation: Any) -> dict[str, Tensor]:
        with torch.no_grad(), evaluation.autocast():
            images = evaluation.batch["x"].to(torch.bfloat16) / 2
            return {"score": evaluation.model(images).float().mean()}

    def of_targets(evaluation: Any) -> dict[str, Tensor]:
        with torch.no_grad(), evaluation.autocast():
            scores = evaluation.model(evaluation.batch["x"])
            targets = evaluation.batch["x"][:, :3].to(scores.dtype)
            return {"error": (scores - targets).float().abs().mean()}

    (finding,) = of_evaluation(of_images, dtype)
    assert finding.kind == "own-cast"
    assert of_evaluation(of_targets, dtype) == ()
