"""``check_fp32``: a tensor that was rounded, one that collapsed, and one of a single value."""

from __future__ import annotations

import warnings

import pytest
import torch

from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure, AmpUsageError
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.float32_values import OneValue, check_fp32
from pytest_amp.precision import BF16, FP16

CPU = Conditions(find_device("cpu"), BF16)


def test_float32_passes_and_rounded_values_are_red() -> None:
    check_fp32(torch.randn(200), CPU, name="loss")
    with pytest.raises(AmpFailure, match="loss is float32, but bfloat16 represents all its values"):
        check_fp32(torch.randn(200).bfloat16().float(), CPU, name="loss")
    with pytest.raises(AmpFailure, match="loss is bfloat16, it should be float32"):
        check_fp32(torch.randn(200).bfloat16(), CPU, name="loss")


def test_collapsed_values_are_red() -> None:
    angles = (torch.arange(70000.0, 70256) / 7).bfloat16().float()
    with pytest.raises(AmpFailure, match="angles has 256 values other than zero, of which 2 are distinct") as raised:
        check_fp32(angles, CPU, name="angles")
    assert "likely    it collapsed" in str(raised.value)


def test_values_beyond_the_range_are_red() -> None:
    angles = (torch.arange(65536.0, 65568)[:, None] * torch.tensor([1.0, 0.5])).half().float()
    with pytest.raises(AmpFailure, match="angles: 32 of 64 values are not finite") as raised:
        check_fp32(angles, Conditions(find_device("cpu"), FP16), name="angles")
    assert "beyond 65504, where float16 ends" in str(raised.value)


def test_few_values_that_the_low_dtype_cannot_represent_pass() -> None:
    check_fp32(torch.tensor([1.0001, 2.0]), CPU, name="pair")
    check_fp32(torch.full((300,), 0.1), CPU, name="constant")


def test_few_values_that_the_low_dtype_represents_are_refused() -> None:
    with pytest.raises(AmpUsageError, match="too few to tell"):
        check_fp32(torch.ones(20), CPU, name="mask")


def test_single_value_is_checked_by_its_dtype() -> None:
    with pytest.warns(OneValue, match='loss has one value.*reduction="none"'):
        check_fp32(torch.tensor(1.5), CPU, name="loss")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_fp32(torch.tensor(0.1), CPU, name="loss")  # which bfloat16 does not have
    with pytest.raises(AmpFailure, match="loss is float16, it should be float32"):
        check_fp32(torch.tensor(1.5).half(), CPU, name="loss")


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_dtype_that_autocast_never_creates_is_explained(dtype: torch.dtype) -> None:
    with pytest.raises(AmpFailure, match=r"likely +what it was made of is \w+64: autocast makes none"):
        check_fp32(torch.arange(200, dtype=dtype), CPU, name="it")
