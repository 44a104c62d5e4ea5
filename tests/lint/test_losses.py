"""Losses, and terms of losses, in a low dtype, together with the correct form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.lint.linted import HIDDEN, case, line_of, of_case


def squared_error(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    scores: Tensor = model(batch["x"])
    return (scores - 1).square().mean()


def log_likelihood(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    chances: Tensor = model(batch["x"]).softmax(1)[torch.arange(24), batch["target"]]
    return -chances.log().mean()


def with_penalty(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    scores: Tensor = model(batch["x"])
    return functional.cross_entropy(scores.float(), batch["target"]) + scores.abs().mean() / 10


def narrowed(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch["x"]).float(), batch["target"]).half()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("loss", [squared_error, log_likelihood, with_penalty, narrowed])
def test_low_loss_is_found_in_its_line(loss: Callable[..., Tensor], dtype: str) -> None:
    (finding,) = of_case(case(loss=loss), dtype)
    assert finding.kind == "low-loss"
    lines = {line_of(loss, 1), line_of(loss, 2)}
    assert int(finding.site.rpartition(":")[2]) in lines


def norm_of_the_batch(scores: Tensor) -> Tensor:
    return scores / (scores * scores).mean().add(1e-3).sqrt()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_norm_over_a_whole_tensor_is_no_term_of_the_loss(dtype: str) -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.scores(x)
            return norm_of_the_batch(scores)

    (finding,) = of_case(case(Normalised), dtype)
    assert finding.kind == "low-norm"
    assert finding.site.endswith(f":{line_of(norm_of_the_batch, 1)}")


class Penalised(nn.Module):
    """Network that returns a penalty on its hidden features beside its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(12, HIDDEN), nn.Linear(HIDDEN, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.enter(x))
        return self.leave(hidden), hidden.abs().mean()


@pytest.mark.parametrize("joined", [False, True])
def test_term_of_the_loss_in_a_module_is_called_a_term(*, joined: bool) -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        scores: Tensor
        penalty: Tensor
        scores, penalty = model(batch["x"])
        entropy = functional.cross_entropy(scores.float(), batch["target"])
        if joined:
            total: Tensor = (torch.stack([entropy, penalty.float()]) * torch.tensor([1.0, 0.1])).sum()
            return total
        return entropy + penalty / 10

    (finding,) = of_case(case(Penalised, loss))
    assert finding.kind == "low-loss"
    assert finding.message.startswith("a term of the loss is computed in bfloat16 (mean")
    assert "x.float()" in finding.advice


def test_losses_of_torch_yield_no_finding() -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        scores = model(batch["x"])
        parts = nn.CrossEntropyLoss()(scores, batch["target"]), functional.mse_loss(scores, torch.ones(24, 3))
        return {"loss": sum(parts), "scores": scores}

    assert of_case(case(loss=loss)) == ()
