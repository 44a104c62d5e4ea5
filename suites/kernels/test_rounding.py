"""Conversions round once, to nearest with ties to even: every tie of a format, and its neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.formats import FLOAT8_E4M3FN, FORMATS, FP32, Overflow, converted, from_patterns, neighbours

from ..formats.numbers import (
    CONVERSIONS,
    SLOW,
    autocast_format,
    expect_rounded,
    low_formats,
    overflow_of,
    spread,
    tensor_of,
)

pytestmark = pytest.mark.amp_parametrize("name", low_formats)


@pytest.mark.parametrize("way", CONVERSIONS)
def test_ties_and_their_neighbours(amp: SuiteAmp, name: str, way: str) -> None:
    """Convert each pattern's tie, with both signs, and the float32 values just below and just above it."""
    form = FORMATS[name]
    for kind, values in neighbours(form).named().items():
        inputs = spread(values, 200) if way in SLOW else values
        actual = CONVERSIONS[way](tensor_of(inputs, amp), form.dtype)
        overflow = overflow_of(form, amp.device.type, way=way)
        expect_rounded(amp, form, inputs, actual, way=f"{way} ({kind})", overflow=overflow)


def test_numbers_of_every_size(amp: SuiteAmp, name: str) -> None:
    """Convert random bits of float32: subnormal values, infinities and NaNs among them."""
    form = FORMATS[name]
    patterns = np.random.default_rng(amp.config.seed).integers(0, 1 << 32, 1 << 17)
    inputs = FP32.decode(patterns)
    actual = from_patterns(patterns, FP32, amp.device.torch_device).to(form.dtype)
    expect_rounded(amp, form, inputs, actual, way="to")


@pytest.mark.parametrize("source", ["float64", "int32", "int64", "bool"])
def test_from_other_dtypes(amp: SuiteAmp, name: str, source: str) -> None:
    """float64 is rounded twice, first to float32, which is visible just above a tie (c10/util/Half.h, BFloat16.h)."""
    form, dtype = FORMATS[name], getattr(torch, source)
    generator = np.random.default_rng(amp.config.seed)
    if source == "float64":
        u = form.u
        chosen = np.array([1 + u + 2.0**-40, 1 + 3 * u - 2.0**-40, -1 - u - 2.0**-40])
        values = np.concatenate([chosen, np.ldexp(generator.standard_normal(4096), generator.integers(-30, 20, 4096))])
    elif source == "bool":
        values = np.array([0.0, 1.0])
    else:
        values = generator.integers(-(2**20), 2**20, 4096).astype(np.float64)
    actual = tensor_of(values, amp, dtype).to(form.dtype)
    overflow = overflow_of(form, amp.device.type, source=dtype)
    expect_rounded(amp, form, FP32.round(values), actual, way=f"to, from {source}", overflow=overflow)


def test_between_low_formats(amp: SuiteAmp, name: str) -> None:
    """Convert every pattern of the autocast dtype; the expected result is that of its float32 value, which is exact."""
    source, form = autocast_format(amp.precision), FORMATS[name]
    patterns = np.arange(1 << source.bits)
    tensor = from_patterns(patterns, source, amp.device.torch_device)
    expect_rounded(amp, form, source.decode(patterns), tensor.to(form.dtype), way=f"to, from {source.name}")
    back = from_patterns(np.arange(1 << form.bits), form, amp.device.torch_device).to(source.dtype)
    expected = source.round(form.decode(np.arange(1 << form.bits)))
    assert np.array_equal(converted(back, source), expected, equal_nan=True)


def test_the_other_direction_of_ties_would_show(amp: SuiteAmp, name: str) -> None:
    """Prove that the tests above can fail: truncation and rounding up give different values on the same inputs."""
    form = FORMATS[name]
    near = neighbours(form)
    expected = form.round(near.ties, overflow_of(form, amp.device.type))
    truncated = np.copysign(form.round(np.abs(near.below), Overflow.SATURATE), near.ties)
    away = np.copysign(form.round(np.abs(near.above), overflow_of(form, amp.device.type)), near.ties)
    assert (truncated != expected).sum() > len(near.ties) // 3
    assert (away != expected).sum() > len(near.ties) // 3
    assert (form is FLOAT8_E4M3FN) != form.infinities
