"""check_compiled accepts correctly compiled code, and describes the error of any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pytest_amp.cases import Case, mlp
from pytest_amp.cases.case import Outputs
from pytest_amp.compiled import Compilation, Where, check_compiled, comparison, sandbox
from pytest_amp.data_files.releases import release_of
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions
from pytest_amp.precision import BF16
from tests.observing import Noted

TRACED = Compilation(backend="aot_eager", fullgraph=True)


@pytest.fixture(autouse=True)
def apart(tmp_path: Path) -> Iterator[None]:
    with sandbox(tmp_path):
        yield


def check(case: Case, compilation: Compilation = TRACED, *, bits: bool = True) -> dict[str, float]:
    observed = Noted()
    check_compiled(case, compilation, Conditions(find_device("cpu"), BF16), observed.observe, bits=bits)
    return observed


def test_graphs_excess_and_equality_are_observed() -> None:
    observed = check(mlp())
    assert set(observed) == {f"mlp/aot_eager/{name}" for name in ("graphs", "excess", "equal")}
    assert observed["mlp/aot_eager/graphs"] == 1
    assert observed["mlp/aot_eager/equal"] == 1


def test_region_inside_compiled_code_passes() -> None:
    assert check(mlp(), replace(TRACED, region=Where.INSIDE))["mlp/aot_eager,inside/equal"] == 1


def _changed(function: object) -> Case:
    """Return the mlp with a loss function that computes something else when compiled."""
    case = mlp()

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> Outputs:
        if not torch.compiler.is_compiling():
            return case.loss(model, batch)
        outputs = case.loss(model, batch)
        assert callable(function)
        return function(outputs, model, batch)

    return replace(case, loss=loss)


def test_different_output_dtype_is_named() -> None:
    with pytest.raises(AmpFailure, match="output logits under autocast") as failed:
        check(_changed(lambda outputs, _model, _batch: {**outputs, "logits": outputs["logits"].float()}))
    assert "bfloat16" in str(failed.value)


def test_different_output_order_is_named() -> None:
    with pytest.raises(AmpFailure, match="is not what it is in eager"):
        check(_changed(lambda outputs, _model, _batch: dict(reversed(outputs.items()))))


def test_different_output_value_is_named() -> None:
    with pytest.raises(AmpFailure, match="has an error of"):
        check(_changed(lambda outputs, _model, _batch: {**outputs, "loss": outputs["loss"] * 1.1}))


def test_known_fault_of_torch_is_the_likely_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "known_cause", lambda _model, name, _where: f"a fault that {name} has")
    with pytest.raises(AmpFailure, match=r"likely +a fault that output\.loss has"):
        check(_changed(lambda outputs, _model, _batch: {**outputs, "loss": outputs["loss"] * 1.1}))


class _Inverted(nn.Module):
    """Linear layer, and a matrix whose inverse autocast leaves in float32; its backward pass is made of products."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.matrix = nn.Linear(8, 4), nn.Parameter(torch.randn(4, 4) / 4 + torch.eye(4))


def _inverted(factor: float = 1.0) -> Case:
    """Return a case whose compiled loss is multiplied by ``factor``."""

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        assert isinstance(model, _Inverted)
        result: torch.Tensor = (
            model.linear(batch).float().square().mean() + torch.linalg.inv(model.matrix).square().sum()
        )
        return result * factor if torch.compiler.is_compiling() else result

    return Case("inverted", _Inverted, lambda: torch.randn(64, 8), loss)


@pytest.mark.skipif(release_of(torch.__version__) < (2, 9), reason="torch has backward_pass_autocast since 2.9")
def test_backward_pass_in_the_region_is_the_likely_cause() -> None:
    with pytest.raises(AmpFailure, match=r"likely +the compiled backward pass runs in the region of the forward pass"):
        check(_inverted(), bits=False)


def test_other_errors_are_not_attributed_to_the_region_of_backward() -> None:
    with pytest.raises(AmpFailure, match=r"likely +the compiler casts elsewhere than eager does") as raised:
        check(_inverted(1.1), bits=False)
    assert "backward pass" not in str(raised.value)


def test_non_finite_output_is_named() -> None:
    with pytest.raises(AmpFailure, match="is not finite") as raised:
        check(_changed(lambda outputs, _model, _batch: {**outputs, "logits": outputs["logits"] / 0}))
    assert raised.match("likely +the compiled code itself: in eager every operator stays finite with these numbers")


def _in_float32(_outputs: object, model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    with torch.autocast("cpu", enabled=False):
        logits = model(batch["inputs"])
        loss = nn.functional.cross_entropy(logits, batch["targets"])
    return {"loss": loss, "logits": logits.bfloat16()}


def test_output_computed_in_float32_is_red() -> None:
    """Eager's dtypes with hardly any rounding: autocast was off in the compiled code."""
    with pytest.raises(AmpFailure, match="of the noise from float64"):
        check(_changed(_in_float32), replace(TRACED, region=Where.INSIDE), bits=False)


class _Embedded(nn.Module):
    """Products of embeddings: no operator of them has a low-precision rule."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Embedding(32, 8), nn.Embedding(32, 8)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        products: torch.Tensor = self.left(rows) * self.right(rows.flip(0))
        return products.sum(-1)


def test_model_without_low_precision_operators_is_as_exact_as_eager() -> None:
    case = Case("embedded", _Embedded, lambda: torch.arange(24), lambda model, rows: model(rows).square().mean())
    assert check(case)["embedded/aot_eager/equal"] == 1


def _products(z: torch.Tensor, seed: int) -> torch.Tensor:
    compiler: Any = torch.compiler
    draw: Callable[[int], torch.Tensor] = compiler.disable(_rows)
    first, second = draw(seed), draw(seed + 1)
    return (torch.cat([z[first], z[second]], 1).tanh() * (seed + 1)).float().square().mean()


def _rows(seed: int) -> torch.Tensor:
    return torch.randperm(64, generator=torch.Generator().manual_seed(seed))


def _loss_of_graphs(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    z = model(x)
    first = _products(z, 0)
    second = _products(z, 2)
    return first + second + _products(z, 4)


def test_gradients_that_several_graphs_add_up_are_those_of_eager_by_graphs() -> None:
    case = Case("graphs", lambda: nn.Linear(16, 32), lambda: torch.randn(64, 16), _loss_of_graphs)
    observed = check(case, Compilation(backend="aot_eager"))
    assert observed["graphs/aot_eager/graphs"] > 1
    assert observed["graphs/aot_eager/equal"] < 1


def _changed_loss_of_graphs(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss = _loss_of_graphs(model, batch)
    return loss * (1 + 2.0**-20) if torch.compiler.is_compiling() else loss


def test_several_graphs_that_compute_another_loss_are_red() -> None:
    case = Case("graphs", lambda: nn.Linear(16, 32), lambda: torch.randn(64, 16), _changed_loss_of_graphs)
    with pytest.raises(AmpFailure, match="is not that of eager"):
        check(case, Compilation(backend="aot_eager"))


def test_kernel_with_different_rounding_is_red() -> None:
    """Values are within the bounds, but not eager's bits."""
    with pytest.raises(AmpFailure, match="is not that of eager"):
        check(_changed(lambda outputs, _model, _batch: {**outputs, "loss": outputs["loss"] * (1 + 2.0**-20)}))


def _dropping() -> Case:
    """Return the mlp with dropout before and after it."""
    case = mlp()
    return replace(case, name="dropping", build=lambda: nn.Sequential(nn.Dropout(0.1), case.build(), nn.Dropout(0.1)))


def test_dropout_is_compared_with_the_traces_own_operator() -> None:
    """Compare with the trace's own dropout: on a CPU, eager's multiplies by a rounded 1 / (1 - p)."""
    assert check(_dropping())["dropping/aot_eager/equal"] < 1


def test_model_with_dropout_is_still_compared_with_eager() -> None:
    case = _dropping()

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> Outputs:
        outputs = case.loss(model, batch)
        assert isinstance(outputs, dict)
        return {**outputs, "loss": outputs["loss"] * (1 + 2.0**-20)} if torch.compiler.is_compiling() else outputs

    with pytest.raises(AmpFailure, match="is not that of eager"):
        check(replace(case, loss=loss))


class _TwoGraphs(nn.Module):
    """A layer whose second result no other part needs, between two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.scale = nn.Linear(16, 32), nn.Linear(32, 4), nn.Parameter(torch.ones(32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        unused = hidden.sum(0) * self.scale
        torch._dynamo.graph_break()
        result: torch.Tensor = self.last(hidden) if unused.numel() else unused
        return result


def _two_graphs(factor: float) -> Case:
    """Return a case in which ``scale`` has no gradient in eager, and in compiled code that of ``factor`` times it."""

    def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = model(x).float().square().mean()
        if torch.compiler.is_compiling():
            value = value + factor * model.get_parameter("scale").sum()
        return value

    return Case("two_graphs", _TwoGraphs, lambda: torch.randn(8, 16), loss)


def test_zeros_for_a_gradient_that_eager_does_not_have_are_accepted() -> None:
    observed = check(_two_graphs(0.0), replace(TRACED, fullgraph=False))
    assert observed["two_graphs/aot_eager/graphs"] > 1


def test_gradient_that_eager_does_not_have_is_named() -> None:
    with pytest.raises(AmpFailure, match=r"the gradient of scale .* is not what it is in eager"):
        check(_two_graphs(0.5), replace(TRACED, fullgraph=False))


def test_numpy_draws_match_those_of_eager() -> None:
    """Draw from numpy before dropout, as SpecAugment masks frames: a trace would draw from torch's generator."""
    case = _dropping()

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> Outputs:
        features = batch["inputs"] * torch.from_numpy(np.random.rand(batch["inputs"].shape[-1])).float()  # noqa: NPY002
        return case.loss(model, {**batch, "inputs": features})

    observed = check(replace(case, loss=loss), replace(TRACED, fullgraph=False), bits=False)
    assert observed["dropping/aot_eager/graphs"] >= 1


def test_disabled_compilation_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable torch.compile, as TORCH_COMPILE_DISABLE=1 does."""
    monkeypatch.setattr(torch, "compile", lambda function, **_keywords: function)
    with pytest.raises(AmpFailure, match="compiled nothing"):
        check(mlp())


def test_reason_without_graph_is_named() -> None:
    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = batch.sum() * 0
        for _ in range(2):
            if batch.sum() > 1e9:
                result = result + 1
            result = result + model(batch).float().square().mean()
        return result

    case = Case("branching", lambda: nn.Linear(8, 4), lambda: torch.randn(16, 8), loss)
    with pytest.raises(AmpFailure, match="compiled nothing") as raised:
        check(case, replace(TRACED, fullgraph=False))
    assert raised.match("likely +Dynamo cannot trace the loss function or the model: .*branching")


def test_error_of_the_compiled_step_alone_is_a_failure() -> None:
    """torch.compile supports no gradients of gradients; a bare traceback would not say that the step runs in eager."""

    def slope(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        points = batch.clone().requires_grad_()
        outputs = model(points).float().sum()
        (gradient,) = torch.autograd.grad(outputs, points, create_graph=True)
        return gradient.square().sum()

    smooth = Case(
        "slope", lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), lambda: torch.randn(8, 4), slope
    )
    with pytest.raises(AmpFailure, match=r"slope, compiled \(aot_eager\), does not run under autocast") as failure:
        check(smooth, Compilation(backend="aot_eager"))
    assert "likely    the loss differentiates gradients (create_graph=True)" in str(failure.value)


def test_weights_that_a_trace_casts_for_each_use_are_compared_without_the_cache() -> None:
    """AOTAutograd adds the gradients of a recurrent cell's steps in float32, eager in the low dtype."""

    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.Linear(32, 16), nn.Linear(16, 12)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state, outputs = torch.zeros(x.shape[0], 16), []
            for step in x.unbind(1):
                state = self.cell(torch.cat([step, state], -1).float()).tanh()
                outputs.append(self.head(state))
            return torch.stack(outputs, 1)

    case = Case(
        "unrolled", Unrolled, lambda: torch.randn(2, 24, 16), lambda model, x: model(x).float().logsumexp(-1).mean()
    )
    check(case, Compilation(backend="aot_eager"))
