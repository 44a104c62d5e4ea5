"""Errors in units of one rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from pytest_amp import torch_private
from pytest_amp.devices import Device, find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions, Roundings, check_reduction, measure_roundings
from pytest_amp.numerics.reductions import known
from pytest_amp.precision import BF16, FP16, Precision
from tests.numerics.planted import broken

CPU = find_device("cpu")


def arguments(length: int) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(32, length) / 8, torch.randn(16, length) / 8, torch.randn(16) / 8]


def ignored(name: str, value: Any, /, **facts: Any) -> None:
    assert facts.pop("allowed") > 0
    assert facts == {"kind": "ratio", "unit": "roundings"}
    assert value >= 0
    assert name.startswith("linear/")


@pytest.mark.parametrize("precision", [BF16, FP16], ids=lambda precision: precision.name)
@pytest.mark.parametrize("length", [64, 2048])
def test_linear_layer_is_rounded_once(precision: Precision, length: int) -> None:
    actual = measure_roundings(f.linear, arguments(length), Conditions(CPU, precision))
    assert actual.forward == pytest.approx(1.0, abs=0.02)
    assert actual.gradients == pytest.approx((1.0, 1.0, 1.0), abs=0.02)


def chunked(_func: Callable[..., Any], args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    x, weight, bias = args
    total = bias.to(torch.get_autocast_dtype("cpu"))
    for i in range(0, x.shape[-1], 32):
        total = total + x[:, i : i + 32] @ weight[:, i : i + 32].t()
    return total


def both(device: Device) -> tuple[Roundings, Roundings, Conditions]:
    where = Conditions(device, BF16)
    return (
        measure_roundings(f.linear, arguments(512), where),
        measure_roundings(f.linear, arguments(4096), where),
        where,
    )


def test_healthy_sums_pass() -> None:
    check_reduction("linear", *both(CPU), ignored)


def test_rounded_sums_are_red_and_grow_with_the_length() -> None:
    short, long, where = both(broken("linear", chunked))
    assert 1.5 < short.forward < long.forward
    with pytest.raises(
        AmpFailure, match=r"linear, forward, has .* times the error of one rounding under autocast"
    ) as raised:
        check_reduction("linear", short, long, where, ignored)
    assert "one rounding, after accumulating in float32" in str(raised.value)


def test_exact_gradient_has_no_rounding() -> None:
    actual = measure_roundings(torch.add, [torch.ones(4), torch.ones(4)], Conditions(CPU, BF16))
    assert actual.gradients == (0.0, 0.0)


def test_known_roundings_depend_on_operator_and_dtype() -> None:
    here = Conditions(CPU, FP16)
    assert known("linear", here).forward == 1.0
    assert known("conv2d", here).gradients > 1.0
    assert (known("conv2d", Conditions(CPU, BF16)).gradients == 1.0) is torch_private.cpu_has_onednn_kernels("bf16")
    assert known("scaled_dot_product_attention", Conditions(CPU, BF16)).forward > 1.0
    assert known("conv2d", here).source


def test_every_row_of_the_table_has_a_source() -> None:
    from pytest_amp.numerics.reductions import _table

    for row in _table():
        assert row["source"]
        assert row["names"]
        assert {"forward", "gradients"} & row.keys()
        assert row.keys() <= {"names", "device_type", "dtype", "without_onednn", "forward", "gradients", "source"}
        assert row.get("dtype", "bf16") in ("bf16", "fp16")


@pytest.mark.parametrize(
    ("short", "long", "direction"),
    [
        (Roundings(1.11, (1.0,)), Roundings(1.0, (1.0,)), "forward"),
        (Roundings(1.0, (1.0,)), Roundings(1.11, (1.0,)), "forward"),
        (Roundings(1.0, (1.0, 1.11)), Roundings(1.0, (1.0,)), "backward"),
        (Roundings(1.0, (1.0,)), Roundings(1.0, (1.11, 1.0)), "backward"),
    ],
)
def test_each_length_and_direction_is_checked(short: Roundings, long: Roundings, direction: str) -> None:
    with pytest.raises(AmpFailure, match=f"linear, {direction}, has"):
        check_reduction("linear", short, long, Conditions(CPU, BF16), ignored)
    check_reduction("linear", short, long, Conditions(CPU, BF16, tolerance_scale=1.1), ignored)


def test_error_within_a_tenth_of_one_rounding_passes() -> None:
    most = Roundings(1.09, (1.09,))
    check_reduction("linear", most, most, Conditions(CPU, BF16), ignored)
