"""Small models, batches and losses that the tests of the linter share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pytest_amp.cases import Case
from pytest_amp.devices.cpu import CpuDevice
from pytest_amp.lint import Finding, findings_of_case, findings_of_evaluation, findings_of_training
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.precision import BF16, FP16

CONDITIONS = {"bf16": Conditions(CpuDevice(), BF16), "fp16": Conditions(CpuDevice(), FP16)}
INPUTS, HIDDEN, OUTPUTS = 12, 48, 3


class Around(nn.Module):
    """Network with a function of hidden features between two linear layers."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.enter, self.leave, self.function = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, OUTPUTS), function

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.leave(self.function(self.enter(x)))
        return result


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUTPUTS))


def samples() -> dict[str, Tensor]:
    x = torch.randn(24, INPUTS)
    return {"x": x, "target": x[:, :OUTPUTS].argmax(-1)}


def wide_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch["x"]).float(), batch["target"])


def case(
    build: Callable[[], nn.Module] = network,
    loss: Callable[..., Any] = wide_loss,
    batch: Callable[[], Any] = samples,
) -> Case:
    return Case("linted", build, batch, loss)


def around(function: Callable[[Tensor], Tensor]) -> Case:
    return case(lambda: Around(function))


def of_case(subject: Case, dtype: str = "bf16") -> tuple[Finding, ...]:
    return findings_of_case(subject, CONDITIONS[dtype])


def of_step(
    train: Callable[[Any], object], dtype: str = "bf16", *, optimizer: Any = None, subject: Case | None = None
) -> tuple[Finding, ...]:
    return findings_of_training(subject or case(), CONDITIONS[dtype], train, optimizer=optimizer)


def of_evaluation(
    evaluate: Callable[[Any], Any], dtype: str = "bf16", *, trained_low: bool = True
) -> tuple[Finding, ...]:
    return findings_of_evaluation(case(), CONDITIONS[dtype], evaluate, trained_low=trained_low)


def kinds(findings: Iterable[Finding]) -> list[str]:
    return [finding.kind for finding in findings]


def line_of(function: Callable[..., Any], offset: int = 0) -> int:
    """Return the number of a line of a function, counted from its first."""
    return int(function.__code__.co_firstlineno) + offset


def update(iteration: Any, loss: Tensor) -> None:
    """Scale a loss, run backward and step."""
    iteration.scaler.scale(loss).backward()
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


def usual_step(iteration: Any) -> None:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss = iteration.loss()
    update(iteration, loss)
