"""Rounding that loses the gradients: the operator that does, and whether float32 has the same problem."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

from pytest_amp.cases import Case
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import BF16, FP16, Precision
from tests.numerics.test_check_gradients import run
from tests.numerics.test_nonfinite import wide


def failure_of(case: Case, precision: Precision = BF16) -> str:
    with pytest.raises(AmpFailure, match="the predicted rounding loses") as raised:
        run(case, precision=precision)
    return str(raised.value)


class Few(nn.Module):
    """BatchNorm over few values a channel, each nearly the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs of a layer that differ by less than their size."""
        result: Tensor = self.last(self.norm(self.first(x)))
        return result


def alike() -> Tensor:
    """Return rows that differ by a hundredth."""
    return torch.randn(1, 8) + 0.01 * torch.randn(3, 8)


def test_batch_norm_over_few_values_is_named() -> None:
    text = failure_of(Case("few", Few, alike, lambda model, x: wide(model(x)).square().mean()))
    assert re.search(r"now +the noise jumps at native_batch_norm\w* in norm \(BatchNorm1d\), \w+ pass", text), text
    assert "ill conditioning, also in float32, in units of its own roundoff" in text
    assert "BatchNorm has 3 values of each channel there: check with a larger batch or larger inputs, or with" in text
    assert "eval()" in text


def test_angles_are_named_with_their_line() -> None:
    def turned(model: nn.Module, x: Tensor) -> Tensor:
        angles = model(x).mul(500)
        return wide(torch.sin(angles)).sum()

    text = failure_of(Case("turned", lambda: nn.Linear(8, 8), lambda: torch.randn(4, 8), turned))
    assert re.search(r"now +the noise jumps at (sin|cos) .*in the loss, \w+ pass, at tests/numerics/test_cond", text)
    assert "rounded by as much as its period" in text


def test_intermediate_overflow_is_named() -> None:
    def normed(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x) * 300
        return wide(y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-3).to(y.dtype)).pow(3).mean()

    text = failure_of(Case("normed", lambda: nn.Linear(8, 8), lambda: torch.randn(4, 8), normed), FP16)
    assert re.search(r"now +mul in the loss, forward pass, at \S+: overflow: up to", text), text
    assert "later operators make it finite" in text


def test_underflow_is_named() -> None:
    case = Case(
        "faint", lambda: nn.Linear(8, 4), lambda: torch.randn(4, 8), lambda m, x: 1e-14 * wide(m(x)).square().mean()
    )
    text = failure_of(case, FP16)
    assert re.search(r"now +the noise jumps at cast in the loss, backward pass", text), text
    assert "underflows to 0: scale the loss" in text
    assert "the low dtype itself, since float32 has no such trouble" in text


def test_cancelling_terms_are_named() -> None:
    def spread(model: nn.Module, x: Tensor) -> Tensor:
        y = model(x) + 20
        variance = (y * y).mean(-1) - y.mean(-1).square()
        return wide(variance).mean()

    text = failure_of(Case("spread", lambda: nn.Linear(8, 8), lambda: torch.randn(4, 8), spread))
    assert re.search(r"now +the noise jumps at (sub|mean|add|sum)", text), text
    assert "Terms cancel in it" in text


class Attends(nn.Module):
    """Attention, whose heads are joined, and outputs that are within a rounding of a half."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 48), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return a sigmoid near its center."""
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.first(x).chunk(3, -1))
        joined = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return torch.sigmoid(1e-4 * self.last(joined))


def test_sign_of_a_difference_is_named_behind_attention() -> None:
    """Joining the heads makes a copy or a view, depending on the strides of attention's result."""
    case = Case(
        "attends",
        Attends,
        lambda: torch.randn(2, 8, 16),
        lambda m, x: nn.functional.l1_loss(wide(m(x)), torch.tensor([0.5, 0.9]).repeat(2, 8, 2)),
    )
    text = failure_of(case)
    assert re.search(r"now +the noise jumps at sgn in the loss, backward pass", text), text
    assert "Rounding decides the sign of its argument" in text


def test_operator_is_named_beside_infinite_values() -> None:
    """Values that are masked by infinity have no noise."""

    def masked(model: nn.Module, x: Tensor) -> Tensor:
        scores = wide(model(x)).mul(500)
        rest = scores.detach().clone()
        rest[:, 0] = -torch.inf
        for _ in range(8):
            rest = rest * 0.5
        return rest.softmax(-1).square().mean() + torch.sin(scores).sum()

    text = failure_of(Case("masked", lambda: nn.Linear(8, 8), lambda: torch.randn(4, 8), masked))
    assert re.search(r"now +the noise jumps at (sin|cos) .*in the loss, \w+ pass, at tests/numerics/test_cond", text)


class Deep(nn.Module):
    """Layers with BatchNorm and ReLU, after each of which rounding decides the sign of some more values."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()) for _ in range(12)]
        self.blocks, self.last = nn.Sequential(*blocks), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the last layer."""
        result: Tensor = self.last(self.blocks(x))
        return result


def test_derivative_with_a_jump_is_named_with_its_share() -> None:
    text = failure_of(Case("deep", Deep, lambda: torch.randn(32, 64), lambda m, x: wide(m(x)).square().mean()))
    assert re.search(r"now +the noise jumps at threshold_backward in blocks\.\d+\.2 \(ReLU\), backward pass", text), (
        text
    )
    assert re.search(r"\(\d+% of the squared error arises there, \d+% in all calls of that operator\)", text), text
    assert "rounding moves inputs across it: check with the BatchNorm layers before it" in text
    predicted, real = re.search(r"loses (\d+)% of .* counts as rounding. Measured: (\d+)%", text, re.DOTALL).groups()  # type: ignore[union-attr]
    assert abs(int(predicted) - int(real)) <= 5


class Unwritten(Few):
    """BatchNorm over few values, after a mask and a join that are written to uninitialized memory."""

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs of layers that drop rows as DropPath does, and write halves of a buffer."""
        y = self.first(x)
        y = y * y.new_empty(y.shape[0], 1).bernoulli_(0.999) * torch.empty_like(y).fill_(1.5)
        joined = torch.empty_like(y)
        joined[:, :8] = y[:, :8]
        joined[:, 8:] = y[:, 8:]
        result: Tensor = self.last(self.norm(joined))
        return result


def test_uninitialized_memory_is_not_named() -> None:
    freed = torch.full((2**16,), 7.0)  # freed memory has values that an empty tensor may have
    case = Case("unwritten", Unwritten, alike, lambda model, x: wide(model(x)).square().mean())
    del freed
    text = failure_of(case)
    assert re.search(r"now +the noise jumps at native_batch_norm\w* in norm \(BatchNorm1d\), \w+ pass", text), text
    assert "empty" not in text


class Gated(Few):
    """BatchNorm over few values, times a gate whose hidden values are zero but for rounding."""

    def forward(self, x: Tensor) -> Tensor:
        """Return gated outputs."""
        hidden = self.first(x)
        faint = torch.relu(hidden - hidden.detach().amax() * (1 - 2.0**-12))
        result: Tensor = self.last(self.norm(hidden * (1 + 1e-3 * faint)))
        return result


def test_faint_values_that_hardly_reach_the_gradients_are_not_named() -> None:
    text = failure_of(Case("gated", Gated, alike, lambda model, x: wide(model(x)).square().mean()))
    assert re.search(r"now +the noise jumps at native_batch_norm\w* in norm \(BatchNorm1d\), \w+ pass", text), text


def test_sign_that_rounding_decides_is_named() -> None:
    def near(model: nn.Module, x: Tensor) -> Tensor:
        assert isinstance(model, nn.Linear)
        y = wide(model(x))
        exact = (x[:, None] * model.weight).sum(-1) + model.bias
        return nn.functional.l1_loss(y, torch.cat([exact[:, :4] + 1e-5, exact[:, 4:] - 3], dim=-1).detach())

    text = failure_of(Case("near", lambda: nn.Linear(8, 8), lambda: torch.randn(4, 8), near))
    assert re.search(r"now +the noise jumps at sgn in the loss, backward pass", text), text
    assert "Rounding decides the sign of its argument" in text
