"""Comparison of a step with its prediction: equality of two tensors, and excesses in every draw."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from pytest_amp.cases import mlp
from pytest_amp.devices import find_device
from pytest_amp.numerics import Conditions, compare, tolerance
from pytest_amp.numerics.compare import Compared, confirmed, same
from pytest_amp.numerics.step import Step
from pytest_amp.precision import BF16


@pytest.mark.parametrize("value", [1.0, math.nan, math.inf, -math.inf])
def test_tensor_is_the_same_as_its_copy(value: float) -> None:
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
def test_different_tensors_are_not_the_same(other: torch.Tensor) -> None:
    tensor = torch.tensor([1.0, 2.0])
    assert not same(tensor, other)
    assert not same(other, tensor)


def test_nan_and_infinity_differ_from_finite_values() -> None:
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
    monkeypatch: pytest.MonkeyPatch,
    bad: list[Compared],
    *draws: list[Compared],
    scale: float = 1.0,
    any_order: bool = False,
) -> list[str]:
    """Return the names that are confirmed if the other draws are ``draws``; all of them have to be requested."""
    left = list(draws)

    def draw(*_: object) -> list[Compared]:
        return left.pop(0)

    monkeypatch.setattr(compare, "_drawn", draw)

    def step(*_: object) -> Step:
        raise AssertionError

    where = Conditions(find_device("cpu"), BF16, tolerance_scale=scale)
    actual = confirmed(bad, mlp(), where, step, limit=tolerance.EXCESS, any_order=any_order)
    assert left == []
    return [tensor.name for tensor in actual]


def test_non_finite_excess_is_confirmed_without_more_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, [tensor("a", math.inf), tensor("b", 1.6)]) == ["a", "b"]


def test_finite_excess_in_one_draw_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, [tensor("a", 40.0)], [tensor("a", 1.0)], [tensor("a", 1.0)]) == []


def test_reduction_in_any_order_is_judged_over_all_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root mean square of 2.2, 1.6 and 1.0 is 1.67, that of 2.2, 1.0 and 1.0 is 1.51, and of 2.1, 1.0, 1.0 1.47."""
    for first, second, expected in ((2.2, 1.6, ["a"]), (2.2, 1.0, ["a"]), (2.1, 1.0, [])):
        draws = [tensor("a", second)], [tensor("a", 1.0)]
        assert drawn(monkeypatch, [tensor("a", first)], *draws, any_order=True) == expected


def test_few_elements_in_any_order_need_more_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight elements are drawn seven times, which are 55 or more; one is drawn 14 times, and may be off by more."""
    few = replace(tensor("a", 2.2), elements=8)
    assert drawn(monkeypatch, [few], *[[replace(few, error=1.2)]] * 6, any_order=True) == []
    assert drawn(monkeypatch, [few], *[[replace(few, error=1.6)]] * 6, any_order=True) == ["a"]
    one = replace(few, elements=1)
    most = tolerance.spread(14)
    assert 2.2 < most < 2.3
    assert drawn(monkeypatch, [one], *[[replace(one, error=2.2)]] * 13, any_order=True) == []
    assert drawn(monkeypatch, [one], *[[replace(one, error=2.4)]] * 13, any_order=True) == ["a"]


def test_median_of_three_draws_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = [tensor("a", 1.9), tensor("b", 1.8), tensor("c", 1.7)]
    second = [tensor("a", 1.6), tensor("b", 1.0), tensor("c", 1.2)]
    third = [tensor("a", 1.0), tensor("b", 1.2), tensor("c", 1.6)]
    assert drawn(monkeypatch, bad, second, third) == ["a", "c"]


def test_tensor_missing_in_another_draw_counts_as_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another check reports a tensor that is not finite in another draw."""
    assert drawn(monkeypatch, [tensor("a", 1.9)], [], []) == []
    assert drawn(monkeypatch, [tensor("a", 1.9)], [tensor("a", 1.9)], []) == ["a"]


def test_wider_tolerance_scale_moves_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, [tensor("a", 3.5)], [tensor("a", 2.9)], [tensor("a", 2.9)], scale=2.0) == []
    assert drawn(monkeypatch, [tensor("a", 3.5)], [tensor("a", 3.1)], [tensor("a", 3.1)], scale=2.0) == ["a"]
