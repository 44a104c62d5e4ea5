"""Parts of a model, a step or an evaluation that miss the region: in a thread, at a line, in another dtype."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_amp.lint import Severity
from tests.lint.linted import HIDDEN, INPUTS, OUTPUTS, case, kinds, line_of, of_case, of_evaluation, of_step, update

BOTH = pytest.mark.parametrize("dtype", ["bf16", "fp16"])


class InThread(nn.Module):
    """Network with a layer that runs in a thread, where the region is opened again if ``restores``."""

    def __init__(self, *, restores: bool) -> None:
        super().__init__()
        self.enter, self.leave, self.restores = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, OUTPUTS), restores

    def forward(self, x: Tensor) -> Tensor:
        results, dtype, enabled = [], torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")

        def work() -> None:
            if not self.restores:
                results.append(self.enter(x))
                return
            with torch.autocast("cpu", dtype=dtype, enabled=enabled):
                results.append(self.enter(x))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        result: Tensor = self.leave(results[0])
        return result


@BOTH
def test_layer_in_a_thread_without_the_region_is_found(dtype: str) -> None:
    (finding,) = of_case(case(lambda: InThread(restores=False)), dtype)
    assert (finding.kind, finding.severity, finding.module) == ("no-region", Severity.WARNING, "enter")
    assert finding.site == f"tests/lint/test_missed_regions.py:{line_of(InThread.forward, 5)}"
    assert "thread" in finding.message


@BOTH
def test_layer_in_a_thread_with_a_region_of_its_own_yields_no_finding(dtype: str) -> None:
    assert not of_case(case(lambda: InThread(restores=True)), dtype)


def evaluates_in_part(evaluation: Any) -> dict[str, Tensor]:
    with torch.no_grad():
        outside = evaluation.loss()
        with evaluation.autocast():
            inside = evaluation.loss()
    return {"loss": (outside + inside) / 2}


@BOTH
def test_evaluation_that_is_outside_in_part_is_found_in_its_line(dtype: str) -> None:
    (finding,) = of_evaluation(evaluates_in_part, dtype)
    assert finding.kind == "evaluation-precision"
    assert finding.site == f"tests/lint/test_missed_regions.py:{line_of(evaluates_in_part, 2)}"


@pytest.mark.filterwarnings("ignore:In CPU autocast")
@BOTH
def test_region_in_float32_is_named_as_such(dtype: str) -> None:
    def train(iteration: Any) -> None:
        iteration.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float32):
            loss = iteration.loss()
        update(iteration, loss)

    (finding,) = of_step(train, dtype)
    assert finding.kind == "autocast-off"
    assert "dtype=torch.float32" in finding.message
    assert "enabled=False" not in finding.message
    assert "dtype of the run" in finding.advice


@pytest.mark.filterwarnings("ignore:User provided device_type")
def test_region_of_another_device_is_named() -> None:
    def train(iteration: Any) -> None:
        iteration.optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = iteration.loss()
        update(iteration, loss)

    (finding,) = of_step(train)
    assert finding.kind == "no-region"
    assert f"test_missed_regions.py:{line_of(train, 2)} is of cuda" in finding.message


class InHalf(torch.autograd.Function):
    """Product in the dtype that ``custom_fwd`` casts to."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float16)  # type: ignore[untyped-decorator]
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight.mT, x.mT @ gradient


class WithFunction(nn.Module):
    """Network with a product by a function of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(INPUTS, HIDDEN), nn.Linear(4, OUTPUTS)
        self.weight = nn.Parameter(torch.randn(HIDDEN, 4) / 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.leave(InHalf.apply(self.enter(x), self.weight))  # type: ignore[no-untyped-call]
        return result


def test_product_that_is_cast_to_another_low_dtype_is_found() -> None:
    findings = of_case(case(WithFunction))
    assert kinds(findings) == ["other-region"]
    assert "a product runs in float16 in a bfloat16 run" in findings[0].message
    assert findings[0].site == f"tests/lint/test_missed_regions.py:{line_of(inspect.unwrap(InHalf.forward), 4)}"
    assert "other-region" not in kinds(of_case(case(WithFunction), "fp16"))
