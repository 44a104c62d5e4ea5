"""Float32 buffers and gradients whose values are rounded by an update that is computed in a low dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.lint.linted import HIDDEN, INPUTS, OUTPUTS, case, line_of, of_case, of_step

BOTH = pytest.mark.parametrize("dtype", ["bf16", "fp16"])


class Replacing(nn.Module):
    """Network that replaces a float32 buffer by the next value of a running average, computed in a low dtype or not."""

    def __init__(self, *, low: bool) -> None:
        super().__init__()
        self.enter, self.leave, self.low = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, OUTPUTS), low
        self.average: Tensor
        self.register_buffer("average", torch.zeros(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        new = x.detach().mean(0) if self.low else x.detach().float().mean(0)
        self.average = (0.9 * self.average.to(new.dtype) + 0.1 * new).float()
        result: Tensor = self.leave(x)
        return result


@BOTH
def test_buffer_that_is_replaced_by_a_low_update_is_found(dtype: str) -> None:
    (finding,) = of_case(case(lambda: Replacing(low=True)), dtype)
    assert finding.kind == "low-buffer"
    assert "the buffer average" in finding.message
    assert finding.site == f"tests/lint/test_rounded_state.py:{line_of(Replacing.forward, 3)}"
    assert not of_case(case(lambda: Replacing(low=False)), dtype)


@BOTH
def test_gradients_that_a_step_rounds_are_found(dtype: str) -> None:
    def train(iteration: Any, cast: Callable[[Tensor], Tensor] = lambda gradient: gradient.to(torch.bfloat16)) -> None:
        iteration.optimizer.zero_grad()
        with iteration.autocast():
            loss = iteration.loss()
        iteration.scaler.scale(loss).backward()
        for weight in iteration.model.parameters():
            weight.grad = (cast(weight.grad) / 2 + cast(weight.grad) / 2).float()
        iteration.scaler.step(iteration.optimizer)
        iteration.scaler.update()

    (finding,) = of_step(train, dtype)
    assert finding.kind == "rounded-values"
    assert "gradients are rounded to bfloat16" in finding.message
    assert not of_step(lambda iteration: train(iteration, torch.Tensor.float), dtype)
