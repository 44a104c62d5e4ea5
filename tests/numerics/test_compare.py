"""Comparison of a step with its prediction: equality of two tensors, and excesses in every draw."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_amp.cases import mlp
from pytest_amp.devices import find_device
from pytest_amp.numerics import Conditions, compare, tolerance
from pytest_amp.numerics.compare import Compared, confirmed, same
from pytest_amp.numerics.step import Step
from pytest_amp.precision import BF16


@pytest.mark.parametrize("value", [1.0, math.nan, math.inf, -math.inf])
def test_a_tensor_is_the_same_as_itself(value: float) -> None:
    tensor = torch.tensor([value, 2.0])
    assert same(tensor, tensor.clone())
    assert same(torch.tensor([0.0]), torch.tensor([-0.0]))


@pytest.mark.parametrize(
    "other",
    [
        torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
        torch.tensor([[1.0, 2.0]]),
        torch.tensor([1.0, 2.0000002]),
        torch.tensor([1.0, math.nan]),
        torch.tensor([1.0, math.inf]),
    ],
    ids=["dtype", "shape", "a bit", "no number", "inf"],
)
def test_what_is_not_the_same(other: torch.Tensor) -> None:
    tensor = torch.tensor([1.0, 2.0])
    assert not same(tensor, other)
    assert not same(other, tensor)


def test_what_is_no_number_is_no_zero_and_an_overflow_no_largest_number() -> None:
    assert not same(torch.tensor([math.nan]), torch.tensor([0.0]))
    assert not same(torch.tensor([math.inf]), torch.tensor([torch.finfo(torch.float32).max]))
    assert not same(torch.tensor([math.inf]), torch.tensor([-math.inf]))


def tensor(name: str, excess: float) -> Compared:
    """Return a tensor whose error is ``excess`` times the expected one."""
    return Compared(
        name=name,
        elements=1000,
        error=excess,
        noise=1.0,
        plain=excess,
        distance=0.0,
        allowed=tolerance.EXCESS,
        equal=False,
        factor=tolerance.EXCESS,
    )


def drawn(
    monkeypatch: pytest.MonkeyPatch, bad: list[Compared], *draws: list[Compared], scale: float = 1.0
) -> list[str]:
    """Return the names that are confirmed if the other draws are ``draws``; all of them have to be requested."""
    left = list(draws)

    def draw(*_: object) -> list[Compared]:
        return left.pop(0)

    monkeypatch.setattr(compare, "_drawn", draw)

    def step(*_: object) -> Step:
        raise AssertionError

    where = Conditions(find_device("cpu"), BF16, tolerance_scale=scale)
    actual = confirmed(bad, mlp(), where, step, limit=tolerance.EXCESS, certain=tolerance.CERTAIN)
    assert left == []
    return [tensor.name for tensor in actual]


def test_what_is_beyond_doubt_is_not_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = [tensor("a", 2.1), tensor("b", 1.6)]
    assert tolerance.CERTAIN == 2.0
    assert drawn(monkeypatch, bad) == ["a", "b"]


def test_the_median_of_three_draws_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = [tensor("a", 1.9), tensor("b", 1.8), tensor("c", 1.7)]
    second = [tensor("a", 1.6), tensor("b", 1.0), tensor("c", 1.2)]
    third = [tensor("a", 1.0), tensor("b", 1.2), tensor("c", 1.6)]
    assert drawn(monkeypatch, bad, second, third) == ["a", "c"]


def test_a_tensor_that_another_draw_has_not_is_healthy_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another check reports a tensor that is not finite in another draw."""
    assert drawn(monkeypatch, [tensor("a", 1.9)], [], []) == []
    assert drawn(monkeypatch, [tensor("a", 1.9)], [tensor("a", 1.9)], []) == ["a"]


def test_a_wider_scale_moves_both_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, [tensor("a", 3.5)], [tensor("a", 2.9)], [tensor("a", 2.9)], scale=2.0) == []
    assert drawn(monkeypatch, [tensor("a", 3.5)], [tensor("a", 3.1)], [tensor("a", 3.1)], scale=2.0) == ["a"]
    assert drawn(monkeypatch, [tensor("a", 4.1)], scale=2.0) == ["a"]
