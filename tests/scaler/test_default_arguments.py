"""Default arguments of check_scaler suit models of functions alone, and losses with long gradients."""

from __future__ import annotations

import torch
from torch import nn

from pytest_amp.cases import Case
from pytest_amp.precision import Precision
from pytest_amp.scaler import plain_sgd
from tests.observing import Noted
from tests.scaler.checked import BOTH, checked
from tests.scaler.test_check_scaler import run


class Factors(nn.Module):
    """Embeddings, whose products a loss computes outside of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.columns = nn.Embedding(8, 4), nn.Embedding(8, 4)


def scores(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    assert isinstance(model, Factors)
    result: torch.Tensor = (model.rows(batch) @ model.columns(batch).mT).float().square().mean()
    return result


@BOTH
def test_default_overflow_needs_no_low_output_of_a_module(precision: Precision) -> None:
    """A model of functions alone is checked by overflow in its gradients, with a note."""
    observed, case = Noted(), Case("factors", Factors, lambda: torch.arange(8), scores)
    steps = checked(case, observed, precision=precision, activations_required=False)
    assert [index for index, step in enumerate(steps) if step.skipped] == [2]
    (note,) = observed.notes
    assert note.startswith(
        f"factors: no module returns a tensor in {precision.dtype_name}, and overflow in the forward"
    )


class Nested(nn.Module):
    """Layer with one low-precision result, in a dictionary in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 8) / 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return self.weight.square().sum(), {"scores": nn.functional.linear(x, self.weight)}


def penalised(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    penalty, outputs = model(batch)
    result: torch.Tensor = outputs["scores"].float().square().mean() + penalty / 100
    return result


@BOTH
def test_overflow_is_planted_in_a_nested_output(precision: Precision) -> None:
    case = Case("nested", Nested, lambda: torch.randn(16, 8), penalised)
    steps = run(case=case, precision=precision, overflow_activations_at=(6,))
    assert [index for index, step in enumerate(steps) if step.skipped] == [2, 6]


def test_long_gradients_do_not_make_the_default_optimizer_diverge() -> None:
    """The loss of a network's derivatives has gradients of length 1e4: steps in proportion to them overflow."""

    def curvature(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        points = batch.clone().requires_grad_()
        (slope,) = torch.autograd.grad(torch.sin(8 * model(points)).sum(), points, create_graph=True)
        return slope.float().square().sum()

    deep = Case(
        "deep",
        lambda: nn.Sequential(nn.Linear(2, 32), nn.Softplus(beta=5), nn.Linear(32, 1)),
        lambda: torch.linspace(-1, 1, 128).view(64, 2),
        curvature,
    )
    steps = run(case=deep, overflow_activations_at=())
    assert [index for index, step in enumerate(steps) if step.skipped] == [2]


def test_short_gradients_leave_the_rate_of_the_default_optimizer() -> None:
    for length, rate in ((0.5, 2.0**-10), (1.0, 2.0**-10), (1000.0, 2.0**-20)):
        parameter = nn.Parameter(torch.zeros(1))
        optimizer = plain_sgd([parameter])
        parameter.grad = torch.full_like(parameter, length)
        optimizer.step()
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == rate
