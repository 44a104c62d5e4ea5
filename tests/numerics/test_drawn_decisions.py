"""Decisions taken from random numbers alone are those of the recorded step, in whatever dtype a step computes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pytest_amp.cases import Case
from pytest_amp.numerics.draws import Draws
from pytest_amp.numerics.realised import realise
from pytest_amp.numerics.step import run_step
from tests.numerics.test_draws import CONDITIONS, case_of

SIZE = 65536


def rand(dtype: torch.dtype) -> Tensor:
    return torch.rand(SIZE, dtype=dtype)


DECISIONS: dict[str, Callable[[torch.dtype], Tensor]] = {
    "floor of a sum": lambda dtype: torch.floor(0.9 + rand(dtype)),
    "floor in place": lambda dtype: rand(dtype).add_(0.9).floor_(),
    "floor behind a cast": lambda dtype: torch.floor(0.9 + torch.rand(SIZE).to(dtype)),
    "comparison": lambda dtype: rand(dtype) / 3 + rand(dtype) / 7 < 0.25,
    "comparison in place": lambda dtype: rand(dtype).div_(3).add_(rand(dtype) / 7).lt_(0.25),
    "cast to a bool": lambda dtype: (rand(dtype) - 0.9).round().to(torch.bool),
    "cast to an integer": lambda dtype: (rand(dtype).view(64, -1) * 10).long(),
    "order": lambda dtype: (rand(dtype) / 3).argsort(stable=True),
    "sum of two draws": lambda dtype: rand(dtype) + torch.rand(SIZE, dtype=dtype) > 1,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("decide", DECISIONS.values(), ids=DECISIONS)
def test_a_decision_is_replayed_with_its_numbers(decide: Callable[[torch.dtype], Tensor], dtype: torch.dtype) -> None:
    draws, decisions = Draws(), []
    for scope, current in ((draws.recording, dtype), (draws.replaying, torch.float32)):
        torch.manual_seed(1)
        with scope():
            decisions.append(decide(current))
    assert torch.equal(decisions[0].double(), decisions[1].double())
    draws.decisions.recorded.clear()
    torch.manual_seed(1)
    with draws.replaying():
        unaided = decide(torch.float32)
    assert not torch.equal(decisions[0].double(), unaided.double()), "no number is near its threshold"


def _by_a_value(numbers: Tensor) -> Tensor:
    return numbers < torch.full((SIZE,), 0.5)


def _written_by_a_value(numbers: Tensor) -> Tensor:
    return torch.floor(numbers.mul_(torch.full((SIZE,), 1.5)))


def _written_through_a_result(numbers: Tensor) -> Tensor:
    half = numbers / 2
    torch.add(numbers, torch.full((SIZE,), 0.25), out=half)
    return half.round()


@pytest.mark.parametrize("decide", [_by_a_value, _written_by_a_value, _written_through_a_result])
def test_a_decision_in_which_a_value_takes_part_is_left_alone(decide: Callable[[Tensor], Tensor]) -> None:
    draws = Draws()
    with draws.recording():
        decide(torch.rand(SIZE, dtype=torch.float16))
    assert draws.recorded
    assert not draws.decisions.recorded


def test_what_was_drawn_is_forgotten_with_its_tensors() -> None:
    draws = Draws()
    with draws.recording():
        torch.floor(torch.rand(4) + 0.5)
    assert not draws.decisions._derived


def _stochastic_depth(x: Tensor) -> Tensor:
    return x * torch.floor(torch.rand_like(x) + 0.9) / 0.9


@pytest.mark.usefixtures("one_thread")
def test_stochastic_depth_keeps_in_float32_what_a_low_dtype_keeps() -> None:
    masks: list[Tensor] = []

    def depth(x: Tensor) -> Tensor:
        result = _stochastic_depth(x)
        masks.append(result.detach() != 0)
        return result

    case: Case = case_of(depth)
    realised = realise(case, CONDITIONS)
    masks.clear()
    run_step(case, realised.on(torch.device("cpu")), CONDITIONS.region, seed=CONDITIONS.seed, replay=False)
    run_step(case, realised.on(torch.device("cpu")), contextlib.nullcontext, seed=CONDITIONS.seed)
    assert torch.equal(*masks)
