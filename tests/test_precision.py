"""Number formats, compared with torch's own."""

from __future__ import annotations

import pytest
import torch

from pytest_amp.precision import ALIASES, BF16, FP16, FP32, LOW, PRECISIONS, TF32, Precision, dtype_name


@pytest.mark.parametrize("precision", [FP32, BF16, FP16])
def test_formats_agree_with_finfo_of_torch(precision: Precision) -> None:
    info = torch.finfo(precision.dtype)
    assert (precision.bits, precision.eps, precision.max) == (info.bits, info.eps, info.max)
    assert precision.smallest_normal == info.smallest_normal
    assert str(precision.dtype) == f"torch.{precision.dtype_name}"


@pytest.mark.parametrize("precision", [FP32, BF16, FP16])
def test_u_is_the_largest_error_of_one_rounding(precision: Precision) -> None:
    """Round a value halfway to the next one to even, and anything above up."""
    half = torch.tensor([1 + precision.u, 1 + precision.u * 1.001], dtype=torch.float64)
    assert half.to(precision.dtype).double().tolist() == [1.0, 1 + precision.eps]
    assert precision.u == precision.eps / 2


def test_tf32_has_the_range_of_fp32_and_the_mantissa_of_fp16() -> None:
    assert (TF32.bits, TF32.eps, TF32.smallest_normal) == (19, FP16.eps, FP32.smallest_normal)
    assert (TF32.dtype, TF32.is_low) == (torch.float32, False)
    assert FP16.max < TF32.max < FP32.max


def test_low_precisions_are_autocast_dtypes() -> None:
    assert [precision.name for precision in PRECISIONS.values() if precision.is_low] == list(LOW) == ["bf16", "fp16"]


def test_aliases_are_dtypes_of_torch() -> None:
    for name, precision in ALIASES.items():
        full = name.removeprefix("torch.")
        if hasattr(torch, full):
            assert getattr(torch, full) == precision.dtype
    assert set(ALIASES.values()) == {BF16, FP16}


def test_dtype_name_omits_torch() -> None:
    assert dtype_name(torch.bfloat16) == "bfloat16"
    assert {dtype_name(precision.dtype) for precision in PRECISIONS.values()} == {"float32", "bfloat16", "float16"}
