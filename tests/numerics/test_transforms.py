"""Manual casts inside transforms of ``torch.func``, whose rules take a call before autocast does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacfwd, jvp, vmap
from torch.nn import functional as f

from pytest_amp import torch_private
from pytest_amp.cases import Case
from pytest_amp.memory import check_casts, check_memory
from tests.memory.test_checks import conditions
from tests.numerics.test_manual_casts import manual_region, registered
from tests.observing import unheeded

LOW = torch.bfloat16


class Layers(nn.Module):
    """Weights for the functions of ``FUNCTIONS``, and three stacked copies of a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.convolution, self.weight = nn.Linear(8, 8), nn.Conv1d(6, 6, 3), nn.Parameter(torch.randn(8, 8))
        self.network = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 8))
        self.names = list(dict(self.network.named_parameters()))
        copies = (value.detach().expand(3, *value.shape).clone() for value in self.network.parameters())
        self.stacked = nn.ParameterList([nn.Parameter(copy + 0.1 * torch.randn(copy.shape)) for copy in copies])

    def ensemble(self, x: Tensor) -> Any:
        """Return the results of the three networks."""
        stacked = dict(zip(self.names, self.stacked, strict=True))
        return vmap(lambda weights, rows: functional_call(self.network, weights, (rows,)), (0, None))(stacked, x)

    def loss(self, weight: Tensor, x: Tensor) -> Tensor:
        """Return a loss in which a weight is used twice."""
        return torch.mm(torch.mm(x, weight), weight).float().square().mean()


FUNCTIONS: dict[str, Callable[[Layers, Tensor], Any]] = {
    "layer": lambda m, x: vmap(lambda row: m.layer(m.layer(row).relu()))(x),
    "layers": lambda m, x: vmap(vmap(m.layer))(x),
    "network": lambda m, x: vmap(m.network)(x),
    "ensemble": lambda m, x: m.ensemble(x[0]),
    "convolution": lambda m, x: vmap(m.convolution)(x),
    "weight used twice": lambda m, x: vmap(lambda row: torch.mm(torch.mm(row, m.weight), m.weight))(x),
    "weight used inside and outside": lambda m, x: vmap(lambda row: torch.mm(row, m.weight))(x) + x @ m.weight,
    "one call for all": lambda m, x: vmap(lambda row: row.sum() + m.layer(x))(x),
    "float32": lambda m, x: vmap(lambda row: f.mse_loss(m.layer(row), row))(x),
    "promoted": lambda m, x: vmap(lambda row: torch.cat([row @ m.weight, row]))(x),
    "no rule": lambda _, x: vmap(lambda row: (row @ row.T).softmax(-1))(x),
    "gradient": lambda m, x: grad(m.loss)(m.weight, x[0]),
    "gradients of rows": lambda m, x: vmap(grad(m.loss), (None, 0))(m.weight, x),
    "tangent": lambda m, x: jvp(m.network, (x,), (x,)),
    "Jacobian": lambda m, x: jacfwd(lambda rows: m.network(rows).float().sum(-1))(x[0]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_manual_casts_match_autocast_inside_a_transform(name: str) -> None:
    """Results, gradients and the casts of weights are the same."""
    torch.manual_seed(0)
    model, x = Layers(), torch.randn(5, 6, 8)
    steps = []
    for region in (lambda: torch.autocast("cpu", LOW), lambda: manual_region(LOW)):
        model.zero_grad()
        with torch_private.counted_casts({id(value): key for key, value in model.named_parameters()}) as casts:
            with region():
                results = torch_private.flat(FUNCTIONS[name](model, x))[0]
            (sum(result.float().square().sum() for result in results) + 0 * model.weight.sum()).backward()
        gradients = [value.grad for value in model.parameters() if value.grad is not None]
        steps.append(([*results, *gradients], sorted(map(str, casts))))
    (expected, expected_casts), (actual, actual_casts) = steps
    assert actual_casts == expected_casts
    assert [value.dtype for value in actual] == [value.dtype for value in expected]
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def test_manual_casts_inside_a_transform_run_no_autocast_kernel() -> None:
    library = registered("bmm", lambda _a, _b: torch.zeros(1))
    try:
        x = torch.ones(3, 1, 2, 2)
        with manual_region(LOW):
            assert torch.equal(vmap(torch.bmm)(x, x), torch.full((3, 1, 2, 2), 2.0, dtype=LOW))
    finally:
        library._destroy()


def test_ensemble_makes_the_casts_and_keeps_the_memory_that_rules_require() -> None:
    """A batching rule adds the float32 bias of each copy to a low-precision product, so the layer returns float32."""

    class Ensemble(Layers):
        def forward(self, x: Tensor) -> Any:
            return self.ensemble(x)

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return f.mse_loss(model(batch["x"]).float(), batch["y"].expand(3, -1, -1))

    subject = Case("it", Ensemble, lambda: {"x": torch.randn(64, 8), "y": torch.randn(64, 8)}, loss)
    check_casts(subject, conditions(), unheeded)
    check_memory(subject, conditions(), unheeded, plain=subject)
