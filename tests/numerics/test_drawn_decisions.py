"""Decisions taken from random numbers alone are those of the recorded step, in whatever dtype a step computes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_amp.cases import Case
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics.draws import Draws
from pytest_amp.numerics.oracle.virtual import Predictor, values
from pytest_amp.numerics.realised import realise
from pytest_amp.numerics.step import run_step
from tests.numerics.planted import kernel
from tests.numerics.test_check_gradients import run
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


def _decide_twice(decide: Callable[[torch.dtype], tuple[Tensor, ...]], dtype: torch.dtype) -> list[tuple[Tensor, ...]]:
    """Return the decisions of a step in ``dtype``, and those of a float32 step that replays them."""
    draws, decisions = Draws(), []
    for scope, current in ((draws.recording, dtype), (draws.replaying, torch.float32)):
        torch.manual_seed(1)
        with scope():
            decisions.append(decide(current))
    return decisions


def _clamped(dtype: torch.dtype) -> tuple[Tensor, ...]:
    numbers = rand(dtype)
    return numbers.clamp(min=0.5) < 0.6, numbers.clamp(max=0.5) < 0.6


def _rounded_twice(dtype: torch.dtype) -> tuple[Tensor, ...]:
    numbers = rand(dtype) * 8 - 4
    return numbers.div(1.5, rounding_mode="floor"), numbers.div(1.5, rounding_mode="trunc")


def _integers(dtype: torch.dtype) -> tuple[Tensor, ...]:
    numbers = rand(dtype) * 1000
    return numbers.to(torch.int64), numbers.to(torch.uint8)


def _written_through_a_view(dtype: torch.dtype) -> tuple[Tensor, ...]:
    numbers = rand(dtype)
    first = numbers < 0.5
    numbers[: SIZE // 2].mul_(0.5)
    return first, numbers < 0.25


def _written_by_foreach(dtype: torch.dtype) -> tuple[Tensor, ...]:
    numbers = rand(dtype)
    first = numbers < 0.5
    torch._foreach_mul_([numbers], 0.5)
    return (first,)


def _expanded(dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (rand(dtype).add(0.9).floor().bool().unsqueeze(1).expand(-1, 3),)


@pytest.mark.parametrize(
    "decide", [_clamped, _rounded_twice, _integers, _written_through_a_view, _written_by_foreach, _expanded]
)
def test_decisions_are_not_mistaken_for_others(decide: Callable[[torch.dtype], tuple[Tensor, ...]]) -> None:
    for low, fp32 in zip(*_decide_twice(decide, torch.bfloat16), strict=True):
        differing = (low.double() - fp32.double()).abs().gt(1e-9).double().mean()
        assert differing < 1 / 64


def test_decisions_of_two_dtypes_are_not_mistaken_for_each_other() -> None:
    def decide(dtype: torch.dtype) -> tuple[Tensor, ...]:
        numbers = torch.rand(SIZE)
        return numbers < 0.1, numbers.to(dtype) < 0.1

    (low, _), (fp32, _) = _decide_twice(decide, torch.bfloat16)
    assert torch.equal(low, fp32)


def test_meta_tensors_have_no_decisions() -> None:
    draws = Draws()
    with draws.recording():
        torch.rand(4, device="meta").floor()
    assert not draws.decisions.recorded


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_sparse_decisions_are_left_alone(layout: torch.layout) -> None:
    def decide(dtype: torch.dtype) -> tuple[Tensor, ...]:
        return (torch.rand(4, 4, dtype=dtype).to_sparse(layout=layout).floor().to_dense(),)

    low, fp32 = _decide_twice(decide, torch.bfloat16)
    assert torch.equal(low[0].float(), *fp32)


def test_computation_that_adds_a_tensor_to_itself_is_followed_in_linear_time() -> None:
    def decide(dtype: torch.dtype) -> tuple[Tensor, ...]:
        numbers = torch.rand(4, dtype=dtype)
        for _ in range(60):
            numbers = (numbers + numbers) * 0.5
        return (numbers < 0.5,)

    low, fp32 = _decide_twice(decide, torch.bfloat16)
    assert torch.equal(*low, *fp32)


def _stochastic_depth(x: Tensor) -> Tensor:
    return x * torch.floor(torch.rand_like(x) + 0.9) / 0.9


def _kept_below(x: Tensor) -> Tensor:
    return x * (torch.rand_like(x) < 0.9)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("overload", ["floor", "lt.Scalar"])
def test_wrong_decisions_of_a_low_precision_kernel_are_an_error(overload: str) -> None:
    def wrong(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args[0].dtype == torch.float32 or args[0].dtype == torch.float64:
            return original(*args, **kwargs)
        return args[0].ceil() if overload == "floor" else args[0] >= args[1]

    case = case_of(_stochastic_depth if overload == "floor" else _kept_below)
    run(case)
    with kernel(overload, wrong), pytest.raises(AmpFailure, match=r"loses|has an error of"):
        run(case)


def test_prediction_replays_decisions_of_numbers_drawn_like_drawn_ones() -> None:
    def decide(dtype: torch.dtype) -> Tensor:
        return torch.floor(torch.rand_like(rand(dtype)) + 0.9)

    draws = Draws()
    torch.manual_seed(1)
    with draws.recording():
        decisions = decide(torch.float16)
    torch.manual_seed(1)
    predictor = Predictor("cpu", rounds=False, draws=draws)
    with predictor.on():
        actual = values(decide(torch.float16))
    assert torch.equal(decisions.double(), actual)
    assert not draws.unknown


def test_prediction_replays_no_decision_of_numbers_to_which_a_value_is_written_through_a_view() -> None:
    draws = Draws()
    torch.manual_seed(1)
    with draws.recording():
        recorded = rand(torch.float16) < 0.5
    torch.manual_seed(1)
    with Predictor("cpu", rounds=False, draws=draws).on():
        numbers = rand(torch.float16)
        numbers[:].add_(torch.full((SIZE,), 0.01, dtype=torch.float16))
        actual = numbers < 0.5
    assert torch.equal(actual, values(numbers) < 0.5)
    assert not torch.equal(actual, recorded)


def _by_a_value(numbers: Tensor) -> Tensor:
    return numbers < torch.full((SIZE,), 0.5)


def _written_by_a_value(numbers: Tensor) -> Tensor:
    return torch.floor(numbers.mul_(torch.full((SIZE,), 1.5)))


def _written_through_a_result(numbers: Tensor) -> Tensor:
    half = numbers / 2
    torch.add(numbers, torch.full((SIZE,), 0.25), out=half)
    return half.round()


def _value_written_through_a_view(numbers: Tensor) -> Tensor:
    numbers[:].add_(torch.full((SIZE,), 0.25))
    return numbers < 0.5


@pytest.mark.parametrize(
    "decide", [_by_a_value, _written_by_a_value, _written_through_a_result, _value_written_through_a_view]
)
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
