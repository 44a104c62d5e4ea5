"""Regions of the model, the loss, the step and the evaluation, together with the correct form."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

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
    samples,
    update,
    usual_step,
    wide_loss,
)

BOTH = pytest.mark.parametrize("dtype", ["bf16", "fp16"])
LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Wrapped(nn.Module):
    """Network in a region of its own."""

    def __init__(self, region: Callable[[], Any]) -> None:
        super().__init__()
        self.network, self.region = network(), region

    def forward(self, x: Tensor) -> Tensor:
        with self.region():
            result: Tensor = self.network(x.float())
        return result


LINE = f"tests/lint/test_regions.py:{line_of(Wrapped.forward, 1)}"


@BOTH
def test_region_that_repeats_the_callers_is_a_warning(dtype: str) -> None:
    (finding,) = of_case(case(lambda: Wrapped(lambda: torch.autocast("cpu", LOW[dtype]))), dtype)
    assert (finding.kind, finding.severity, finding.site) == ("own-region", Severity.WARNING, LINE)
    assert "autocast" in finding.message


def test_decorated_forward_is_a_region() -> None:
    class Decorated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        @torch.autocast("cpu", torch.bfloat16)  # type: ignore[untyped-decorator]
        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.network(x)
            return result

    (finding,) = of_case(case(Decorated))
    assert finding.kind == "own-region"
    assert finding.site == f"tests/lint/test_regions.py:{line_of(inspect.unwrap(Decorated.forward))}"


@BOTH
def test_region_in_another_dtype_is_an_error(dtype: str) -> None:
    other = torch.float16 if dtype == "bf16" else torch.bfloat16
    (finding,) = of_case(case(lambda: Wrapped(lambda: torch.autocast("cpu", other))), dtype)
    assert (finding.kind, finding.severity, finding.site) == ("other-region", Severity.ERROR, LINE)


@BOTH
def test_region_with_the_callers_settings_yields_no_finding(dtype: str) -> None:
    def region() -> Any:
        return torch.autocast("cpu", torch.get_autocast_dtype("cpu"), enabled=torch.is_autocast_enabled("cpu"))

    assert of_case(case(lambda: Wrapped(region)), dtype) == ()


@BOTH
def test_model_that_switches_autocast_off_is_an_error(dtype: str) -> None:
    (finding,) = of_case(case(lambda: Wrapped(lambda: torch.autocast("cpu", enabled=False))), dtype)
    assert (finding.kind, finding.severity, finding.site) == ("autocast-off", Severity.ERROR, LINE)
    assert "enabled=False" in finding.message


@BOTH
def test_autocast_state_switched_off_is_an_error(dtype: str) -> None:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        torch.set_autocast_enabled("cpu", False)  # noqa: FBT003  # it has no keyword
        return wide_loss(model, batch)

    (finding,) = of_case(case(loss=loss), dtype)
    assert (finding.kind, finding.severity) == ("nothing-low", Severity.ERROR)
    assert "torch.set_autocast_enabled" in finding.advice


@BOTH
def test_disabled_region_around_a_norm_or_the_loss_yields_no_finding(dtype: str) -> None:
    def norm(x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return functional.layer_norm(x.float(), (48,))

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        scores = model(batch["x"])
        with torch.autocast("cpu", enabled=False):
            return functional.cross_entropy(scores.float(), batch["target"])

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.leave = nn.Linear(12, 48), nn.Linear(48, 3)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.leave(norm(self.enter(x)))
            return result

    assert of_case(case(Normed, loss), dtype) == ()


@BOTH
def test_model_of_float64_computes_nothing_low(dtype: str) -> None:
    def batch() -> dict[str, Tensor]:
        return {"x": samples()["x"].double(), "target": samples()["target"]}

    assert "nothing-low" in kinds(of_case(case(lambda: network().double(), batch=batch), dtype))


def test_attention_that_computes_in_float32_by_itself_yields_no_finding() -> None:
    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x = x.view(4, 1, 6, 12)
            with sdpa_kernel([SDPBackend.MATH]):
                return functional.scaled_dot_product_attention(x, x, x).reshape(24, 12)

    def batch() -> dict[str, Tensor]:
        return {"x": samples()["x"].requires_grad_(), "target": samples()["target"]}

    assert of_case(case(Attention, batch=batch)) == ()


def without_region(iteration: Any) -> None:
    iteration.optimizer.zero_grad()
    loss = iteration.loss()
    update(iteration, loss)


def backward_inside(iteration: Any) -> None:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss = iteration.scaler.scale(iteration.loss())
        torch.autograd.backward(loss)
    iteration.scaler.step(iteration.optimizer)
    iteration.scaler.update()


def loss_behind(iteration: Any) -> None:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        scores = iteration.model(iteration.batch["x"])
    loss = nn.CrossEntropyLoss()(scores, iteration.batch["target"])
    update(iteration, loss)


def loss_behind_widened(iteration: Any) -> None:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        scores = iteration.model(iteration.batch["x"])
    loss = nn.CrossEntropyLoss()(scores.float(), iteration.batch["target"])
    update(iteration, loss)


def own_region(iteration: Any) -> None:
    iteration.optimizer.zero_grad()
    with torch.autocast("cpu", iteration.precision.dtype):
        loss = functional.cross_entropy(iteration.model(iteration.batch["x"]), iteration.batch["target"])
    update(iteration, loss)


def second_half_outside(iteration: Any) -> None:
    iteration.optimizer.zero_grad()
    with iteration.autocast():
        loss = iteration.loss()
    loss = loss + wide_loss(iteration.model, {**iteration.batch, "x": iteration.batch["x"] * 2})
    update(iteration, loss)


def disabled(iteration: Any) -> None:
    iteration.optimizer.zero_grad()
    with torch.autocast("cpu", enabled=False):
        loss = iteration.loss()
    update(iteration, loss)


@BOTH
@pytest.mark.parametrize(
    ("train", "kind", "offset"),
    [
        (without_region, "no-region", 2),
        (backward_inside, "backward-in-region", 4),
        (loss_behind, "loss-outside-region", 4),
        (disabled, "autocast-off", 2),
    ],
)
def test_wrong_step_is_an_error_in_its_line(train: Callable[[Any], None], kind: str, offset: int, dtype: str) -> None:
    (finding,) = of_step(train, dtype)
    assert (finding.kind, finding.severity) == (kind, Severity.ERROR)
    assert finding.site == f"tests/lint/test_regions.py:{line_of(train, offset)}"


class Trainer:
    """Trainer whose methods call the model, as a trainer of a project does."""

    def __init__(self, iteration: Any) -> None:
        self.iteration = iteration

    def compute_loss(self) -> Tensor:
        return wide_loss(self.iteration.model, self.iteration.batch)

    def run(self) -> None:
        self.iteration.optimizer.zero_grad()
        update(self.iteration, self.compute_loss())


def test_step_of_a_trainer_is_named_with_its_calling_lines() -> None:
    (finding,) = of_step(lambda iteration: Trainer(iteration).run())
    assert finding.kind == "no-region"
    assert finding.site.endswith("tests/lint/linted.py:" + str(line_of(wide_loss, 1)))
    assert f"test_regions.py:{line_of(Trainer.compute_loss, 1)}" in finding.message
    assert f"test_regions.py:{line_of(Trainer.run, 2)}" in finding.message


@BOTH
def test_part_of_a_step_outside_of_the_region_is_a_warning(dtype: str) -> None:
    (finding,) = of_step(second_half_outside, dtype)
    assert (finding.kind, finding.severity) == ("no-region", Severity.WARNING)


@BOTH
@pytest.mark.parametrize("train", [usual_step, loss_behind_widened, own_region])
def test_right_step_yields_no_finding(train: Callable[[Any], None], dtype: str) -> None:
    assert of_step(train, dtype) == ()


def ragged() -> dict[str, Any]:
    return {"x": [torch.randn(rows, INPUTS) for rows in (5, 9, 3)], "target": torch.tensor([0, 2, 1])}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=["jagged", "strided"])
def test_nested_tensors_yield_no_finding(layout: torch.layout) -> None:
    """Their rows differ in length: jagged ones have a symbol in their shape, and strided ones no shape."""

    def loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        rows = model(torch.nested.nested_tensor(batch["x"], layout=layout)).unbind()
        return functional.cross_entropy(torch.stack([row.mean(0) for row in rows]).float(), batch["target"])

    assert of_case(case(lambda: nn.Linear(INPUTS, OUTPUTS), loss, ragged)) == ()


def evaluate_outside(evaluation: Any) -> dict[str, Tensor]:
    with torch.no_grad():
        return {"loss": evaluation.loss()}


def evaluate_inside(evaluation: Any) -> dict[str, Any]:
    evaluation.model.eval()
    with torch.inference_mode(), evaluation.autocast():
        scores = evaluation.model(evaluation.batch["x"])
    right = (scores.argmax(1) == evaluation.batch["target"]).float().mean()
    return {"right": right.item(), "scores": scores}


@BOTH
def test_evaluation_in_another_precision_is_found(dtype: str) -> None:
    (finding,) = of_evaluation(evaluate_outside, dtype)
    assert finding.kind == "evaluation-precision"
    assert finding.site == f"tests/lint/test_regions.py:{line_of(evaluate_outside, 2)}"
    assert kinds(of_evaluation(evaluate_inside, dtype, trained_low=False)) == ["evaluation-precision"]


@BOTH
def test_evaluation_in_the_training_precision_yields_no_finding(dtype: str) -> None:
    assert of_evaluation(evaluate_inside, dtype) == ()
    assert of_evaluation(evaluate_outside, dtype, trained_low=False) == ()


class Spectral(nn.Module):
    """Filter of frequencies between two linear layers: torch multiplies complex tensors in no low dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(INPUTS, HIDDEN), nn.Linear(HIDDEN, OUTPUTS)
        self.filter = nn.Parameter(torch.randn(HIDDEN // 2 + 1, HIDDEN // 2 + 1, dtype=torch.complex64) / HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.enter(x)
        with torch.autocast(x.device.type, enabled=False):
            frequencies = torch.fft.rfft(hidden.float())
            filtered = torch.fft.irfft(frequencies @ self.filter, n=HIDDEN)
        result: Tensor = self.leave(filtered)
        return result


def test_disabled_region_around_complex_products_is_sound() -> None:
    assert kinds(of_case(case(Spectral))) == []


def test_complex_model_has_no_product_that_autocast_casts() -> None:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(INPUTS, OUTPUTS, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return (x.to(torch.complex64) @ self.weight).abs()

    (finding,) = of_case(case(Complex))
    assert (finding.kind, finding.severity) == ("nothing-low", Severity.WARNING)
    assert "no product that autocast casts" in finding.message
