"""Each operator on low-precision values, with a rule or without, has only its rounding error, at every length."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from pytest_amp.amp import SuiteAmp
from pytest_amp.data_files.releases import holds_in, release_of
from pytest_amp.numerics import MeasuredOperator, check_operator, confirmed_operator, measure_operator

from .long_operators import ELEMENTWISE, PRODUCTS, REDUCTIONS

SHORT, LONG, LONGEST = 256, 16384, 262144


def measured(amp: SuiteAmp, name: str, function: Callable[..., Tensor], *tensors: Tensor) -> MeasuredOperator:
    return measure_operator(name, function, tensors, amp.conditions)


def expect_bounds(amp: SuiteAmp, name: str, sizes: dict[str, MeasuredOperator]) -> None:
    check_operator(name, sizes, amp.conditions, amp.observe)


def reduction(amp: SuiteAmp, name: str, length: int) -> MeasuredOperator:
    long = REDUCTIONS[name]

    def draw() -> MeasuredOperator:
        low = [(torch.randn(shape) * long.spread).to(amp.dtype) for shape in long.low(length)]
        return measured(amp, name, long.function, *low, *(torch.randn(shape) for shape in long.wide(length)))

    return confirmed_operator(draw, seed=amp.config.seed)


#: Before torch 2.13 (2.12 was not tried) backward uses a formula of quadratic cost under a dispatch mode, as the
#: oracle is one: 16384 values take minutes. The formula is made of prod, which a CPU multiplies in the low dtype.
QUADRATIC = "cumprod"
_BEFORE_2_13 = holds_in(release_of(torch.__version__), since=None, until="2.12")
WITHOUT_LENGTH = (QUADRATIC,) if _BEFORE_2_13 else ()


# rms_norm of low-precision values with a float32 weight is not fused: pytorch/pytorch#167308, before 2.12 and on CPUs.
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.amp_parametrize("name", lambda _: [name for name in REDUCTIONS if name not in WITHOUT_LENGTH])
def test_sums_do_not_lose_with_length(amp: SuiteAmp, name: str) -> None:
    """Sums over 256 and over 16384 values keep their precision, forward and backward."""
    expect_bounds(amp, name, {str(length): reduction(amp, name, length) for length in (SHORT, LONG)})


#: Coordinates in an image of 256 pixels leave 16 of float32's bits to the position between two pixels. Statistics of
#: Sums of 262144 rows, added sequentially, have an error of the square root of as many float32 roundings (CPU,
#: measured: 2.7e-5).
WITHOUT_GREAT_LENGTH = ("grid_sample", "batch_norm", *WITHOUT_LENGTH)


# Run on a CPU (torch 2.13); not on CUDA yet.
@pytest.mark.amp_long
@pytest.mark.amp(devices=["cpu"])
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.amp_parametrize("name", lambda _: [name for name in REDUCTIONS if name not in WITHOUT_GREAT_LENGTH])
def test_sums_do_not_lose_with_great_length(amp: SuiteAmp, name: str) -> None:
    expect_bounds(amp, name, {str(LONGEST): reduction(amp, name, LONGEST)})


# On CUDA, which multiplies in float32, backward is a scan with an order of its own.
@pytest.mark.amp(devices=["cpu"])
@pytest.mark.parametrize("name", [name for name in PRODUCTS if not (name.startswith("running") and _BEFORE_2_13)])
def test_products_outside_of_a_region_round_as_their_model(amp: SuiteAmp, name: str) -> None:
    """Each factor of a low-precision product rounds it, in the order in which the kernel takes them."""

    def alone(x: Tensor) -> Tensor:
        with amp.autocast(enabled=False):
            return PRODUCTS[name](x / 32 + 1)

    def draw(length: int) -> MeasuredOperator:
        low = torch.randn(4, length).to(amp.dtype)
        return measure_operator(f"product {name}", alone, (low,), amp.conditions, has_regions=True)

    seed = amp.config.seed
    sizes = {str(length): confirmed_operator(partial(draw, length), seed=seed) for length in (SHORT, 600)}
    expect_bounds(amp, f"product.{name}", sizes)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_functions_round_as_their_model(amp: SuiteAmp, name: str) -> None:
    def draw() -> MeasuredOperator:
        return measured(amp, name, ELEMENTWISE[name], torch.randn(64, 64).to(amp.dtype))

    expect_bounds(amp, name, {"4096": confirmed_operator(draw, seed=amp.config.seed)})
