"""Colliding updates in the low dtype: in order on a CPU, and nondeterministic with CUDA's atomics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from pytest_amp.cases import Case
from pytest_amp.devices import find_device
from pytest_amp.numerics.oracle import Predictor, run_virtual
from pytest_amp.numerics.oracle.colliding_updates import spread
from pytest_amp.numerics.oracle.models import ModelName
from pytest_amp.numerics.oracle.observer import ObservedCall, Observer
from pytest_amp.numerics.oracle.operation import Operation
from pytest_amp.numerics.oracle.verdict import EXCESS, faults
from pytest_amp.numerics.prediction import manual_region
from pytest_amp.numerics.tolerance import DEVIATIONS
from pytest_amp.precision import BF16
from tests.numerics.planted import kernel

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"]),
]
ROWS, PLACES, WIDTH = 64, 16, 72


def numbers(dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed)).to(dtype)


def places(count: int = PLACES) -> Tensor:
    return torch.arange(ROWS) % count


def room(x: Tensor) -> Tensor:
    return numbers(x.dtype, 7)[:PLACES]


#: Operators that a CPU accumulates in the dtype, one after the other, whatever the device is called.
IN_TURN: dict[str, Callable[[Tensor], Tensor]] = {
    "index_put": lambda x: room(x).index_put((places() - PLACES,), x, accumulate=True),
    "index_put of one number": lambda x: room(x).index_put((places(),), x[0, 0], accumulate=True),
    "index_put of columns": lambda x: torch.ops.aten.index_put(
        x, [None, torch.arange(9) % 4], x[:, :9], accumulate=True
    ),
    "index_put of two indices": lambda x: x.index_put((places()[:, None], torch.arange(WIDTH) % 5), x, accumulate=True),
    "index_put_": lambda x: room(x).clone().index_put_((places(),), x, accumulate=True),
    "put": lambda x: room(x).put(torch.arange(x.numel()).view(WIDTH, ROWS) % 500 - 250, x, accumulate=True),
    "put_": lambda x: room(x).clone().put_(torch.arange(x.numel()) % 500, x, accumulate=True),
    "index_add_": lambda x: room(x).flatten().index_add_(0, torch.arange(x.numel()) % 700, x.flatten()),
    "unfold_backward": lambda x: torch.ops.aten.unfold_backward(x[:, :60].view(ROWS, 12, 5), [ROWS, 27], 1, 5, 2),
}
#: Operators that CUDA accumulates in a nondeterministic order, and a CPU in float32.
IN_ANY_ORDER: dict[str, Callable[[Tensor], Tensor]] = {
    "index_add": lambda x: room(x).index_add(0, places(), x),
    "index_add times a number": lambda x: room(x).index_add(0, places(), x, alpha=0.3),
    "scatter_add": lambda x: room(x).scatter_add(0, places()[:, None].expand(ROWS, WIDTH), x),
    "scatter_add of a part": lambda x: room(x).scatter_add(0, places()[:48, None].expand(48, 60), x),
    "scatter_reduce": lambda x: room(x).scatter_reduce(0, places()[:, None].expand(ROWS, WIDTH), x, "sum"),
    "scatter_reduce without what was there": lambda x: room(x).scatter_reduce(
        0, places()[:, None].expand(ROWS, WIDTH), x, "sum", include_self=False
    ),
}


def observed_by(device: str, function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> list[ObservedCall]:
    observer = Observer(device, dtype)
    x = numbers(dtype)
    with observer.on({}):
        function(x)
    assert [call.problem for call in observer.observed_calls if call.problem] == []
    return [call for call in observer.observed_calls if call.model.name in (ModelName.ANY_ORDER, ModelName.RUNNING_SUM)]


@pytest.mark.parametrize("name", IN_TURN)
def test_cpu_accumulates_in_order(name: str, dtype: torch.dtype) -> None:
    [actual] = observed_by("cuda", IN_TURN[name], dtype)
    [result] = actual.results
    assert (actual.model.name, result.equal) == (ModelName.ANY_ORDER, result.elements)
    if not name.endswith("_"):  # writing operators have no model on a CPU
        [actual] = observed_by("cpu", IN_TURN[name], dtype)
        assert (actual.model.name, actual.results[0].equal) == (ModelName.RUNNING_SUM, result.elements)


@pytest.mark.parametrize("name", IN_ANY_ORDER)
def test_each_colliding_update_is_rounded(name: str, dtype: torch.dtype) -> None:
    """Predict more than this CPU's one rounding: an H200 has 1.5 to 1.7 times its error with four values at a place."""
    [actual] = observed_by("cuda", IN_ANY_ORDER[name], dtype)
    [result] = actual.results
    most = 1.1 if "times" in name else 0.8  # a CPU rounds products, too
    assert 0.5 < result.error / result.ideal < most
    assert faults([actual], dtype) == []


def low_sums(x: Tensor, index: Tensor, source: Tensor, order: Tensor) -> Tensor:
    """Accumulate the rows of ``index_add`` in the dtype itself, in the given order."""
    result = x.clone()
    for row in order.tolist():
        result[index[row]] += source[row]
    return result


def in_some_order(lost: int = 0) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]:
    """Kernel that accumulates in a new order each time, without the last rows."""
    generator = torch.Generator().manual_seed(3)

    def run(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, _, index, source = args
        if source.dtype not in (torch.bfloat16, torch.float16):
            return original(*args, **kwargs)
        order = torch.randperm(len(index), generator=generator)
        return low_sums(x, index, source, order[: len(order) - lost])

    return run


@pytest.mark.parametrize("count", [1, 4, 16])
def test_different_order_of_updates_is_no_fault(count: int, dtype: torch.dtype) -> None:
    """Use 64, 16 and 4 values at a place."""
    with kernel("index_add", in_some_order()):
        for _ in range(10):
            actual = observed_by("cuda", lambda x: room(x)[:count].index_add(0, places(count), x), dtype)
            assert actual[0].results[0].equal < actual[0].results[0].elements
            assert faults(actual, dtype) == []


@pytest.mark.parametrize("count", [4, 16])
def test_lost_update_is_a_fault(count: int, dtype: torch.dtype) -> None:
    with kernel("index_add", in_some_order(lost=1)):
        actual = observed_by("cuda", lambda x: room(x)[:count].index_add(0, places(count), x), dtype)
    assert [fault.operator for fault in faults(actual, dtype)] == ["index_add"]


def test_additional_rounding_without_collisions_is_a_fault(dtype: torch.dtype) -> None:
    """Without collisions there is no order, and elements are compared again."""

    def coarse(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = original(*args, **kwargs)
        return ((result * 1.25) / 1.25).to(result.dtype) if result.dtype == dtype else result

    def alone(x: Tensor) -> Tensor:
        return x.index_add(0, torch.arange(ROWS).flip(0), x)

    assert faults(observed_by("cuda", alone, dtype), dtype) == []
    with kernel("index_add", coarse):
        actual = observed_by("cuda", alone, dtype)
    assert actual[0].results[0].spread == 1.0
    assert len(faults(actual, dtype)) == 1


def test_spread_bounds_the_distance_between_two_draws(dtype: torch.dtype) -> None:
    del dtype
    assert spread(torch.ones(900)) == pytest.approx(math.exp(DEVIATIONS / 30))
    assert spread(torch.tensor([0.0, 0.0, 2.0])) == pytest.approx(math.exp(DEVIATIONS))
    assert spread(torch.zeros(4)) == 1.0
    errors = torch.randn(2, 2000, 64, generator=torch.Generator().manual_seed(0)).norm(dim=-1)
    worst = float((errors[0] / errors[1]).max())
    assert worst < EXCESS * spread(torch.randn(64, generator=torch.Generator().manual_seed(1)))


class Places(torch.nn.Module):
    """Add the rows of the argument to ``count`` places."""

    def __init__(self, count: int, *, in_place: bool) -> None:
        super().__init__()
        self.count, self.in_place = count, in_place

    def forward(self, x: Tensor) -> Tensor:
        to = x.new_zeros(self.count, WIDTH)
        return to.index_add_(0, places(self.count), x) if self.in_place else to.index_add(0, places(self.count), x)


def noise(model: Places, dtype: torch.dtype) -> tuple[float, set[str]]:
    """Return the error that is predicted for CUDA, and the operators whose order of sums is unknown."""

    def outputs(model: torch.nn.Module, x: Tensor) -> dict[str, Tensor]:
        result = model(x)
        return {"loss": result.float().sum(), "sums": result}

    case = Case("places", lambda: model, lambda: numbers(dtype).requires_grad_(), outputs)
    actual, unknown = [], set()
    for rounds in (False, True):
        predictor = Predictor("cuda", rounds=rounds)
        region = manual_region(find_device("cpu"), BF16, inside=False)
        actual.append(run_virtual(case, case.realise().on("cpu"), region, predictor, seed=0).step.outputs["sums"])
        unknown = predictor.unmodelled
    return float((actual[1] - actual[0]).norm() / actual[0].norm()), unknown


@pytest.mark.parametrize("in_place", [False, True])
def test_predicted_noise_grows_with_collisions(dtype: torch.dtype, *, in_place: bool) -> None:
    assert noise(Places(ROWS, in_place=in_place), dtype) == (0.0, set())
    few, some = noise(Places(PLACES, in_place=in_place), dtype)
    many, more = noise(Places(1, in_place=in_place), dtype)
    assert 2 * few < many
    assert some == more == {"aten::index_add_" if in_place else "aten::index_add"}


MODES = {"linear": (4, 8, 24), "bilinear": (4, 8, 12, 10), "bicubic": (4, 8, 12, 10), "trilinear": (2, 4, 4, 6, 7)}


def going_back(device: str, mode: str, dtype: torch.dtype, **options: Any) -> ObservedCall:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(MODES[mode], generator=generator).to(dtype).requires_grad_()
    observer = Observer(device, dtype)
    with observer.on({}):
        result = f.interpolate(x, mode=mode, **options)
        torch.autograd.backward(result, torch.randn(result.shape, generator=generator).to(dtype))
    [actual] = [
        call
        for call in observer.observed_calls
        if call.operator.startswith("aten::upsample") and "back" in call.operator
    ]
    return actual


@pytest.mark.parametrize("options", [{"scale_factor": 1.7}, {"scale_factor": 0.6, "recompute_scale_factor": True}])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_interpolation_backward_matches_the_float64_kernel(
    mode: str, options: dict[str, Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, *, align_corners: bool
) -> None:
    """Compare the formula without rounding with a CPU's float64."""
    with monkeypatch.context() as patched:
        patched.setattr(Operation, "low", lambda _, values, __: values)
        actual = going_back("cuda", mode, dtype, align_corners=align_corners, **options)
    [result] = actual.results
    assert result.equal > 0.98 * result.elements  # the remaining ones of fp16 are float32 roundings of a place
    assert result.error == pytest.approx(result.ideal, rel=0.02)


@pytest.mark.parametrize(
    ("mode", "least", "most"),
    [("linear", 1.75, 1.95), ("bilinear", 3.0, 3.35), ("bicubic", 5.3, 5.9), ("trilinear", 5.4, 6.0)],
)
def test_interpolation_backward_on_cuda_rounds_each_share(
    mode: str, least: float, most: float, dtype: torch.dtype
) -> None:
    """Expect an H200's 1.8 to 1.9, 3.1 to 3.2, 5.4 to 5.8 and 5.5 to 5.9, in units of this CPU's one rounding."""
    [result] = going_back("cuda", mode, dtype, scale_factor=2.0).results
    [once] = going_back("cpu", mode, dtype, scale_factor=2.0).results
    assert once.equal > 0.99 * once.elements
    assert least < result.ideal / once.ideal < most


def test_average_pooling_backward_on_cuda_rounds_its_shares(dtype: torch.dtype) -> None:
    """Shares of nine windows, added in float32, make 1.4 times the error of one rounding, as on an H200."""
    x = torch.randn(4, 8, 12, 12, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    observer = Observer("cuda", dtype)
    with observer.on({}):
        y = f.avg_pool2d(x, 3, 1)
        torch.autograd.backward(y, torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(dtype))
    [actual] = [call.results[0] for call in observer.observed_calls if call.operator == "aten::avg_pool2d_backward"]
    assert 1.5 < actual.error / actual.ideal < 1.8  # this CPU rounds their sums, too
    assert actual.equal < 0.7 * actual.elements
