"""Thresholds of formats: overflow, underflow and saturation; NaN and infinity are preserved."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.formats import FLOAT8_E4M3FN, FORMATS, Format, Overflow, converted

from .numbers import CONVERSIONS, autocast_format, low_formats, overflow_of, tensor_of


def _over(form: Format, amp: SuiteAmp, value: float, way: str) -> float:
    """Return the expected conversion of a ``value`` that overflows the format."""
    if overflow_of(form, amp.device.type, way=way) is Overflow.SATURATE:
        return math.copysign(form.max, value)
    return math.copysign(math.inf, value) if form.infinities else math.nan


def _convert(amp: SuiteAmp, form: Format, value: float, way: str) -> float:
    """Convert ``value``, repeated 80 times so that vectorized loops run as well."""
    actual = converted(CONVERSIONS[way](tensor_of(np.full(80, value), amp), form.dtype), form)
    assert len({repr(element) for element in actual.tolist()}) == 1, "one number becomes several, by where it stands"
    return float(actual[0])


def _hold(amp: SuiteAmp, form: Format, value: float, expected: float, way: str) -> None:
    actual = _convert(amp, form, value, way)
    if actual == expected or (math.isnan(actual) and math.isnan(expected)):
        return
    overflow = overflow_of(form, amp.device.type, way=way)
    raise AmpFailure(
        f"{value!r} becomes {actual!r} in {form.name} by {way} on {amp.target.id}",
        label_before="rule",
        before=f"{expected!r}: what is too large becomes {overflow.value} in this release",
        now=f"{actual!r} on {amp.device.describe()}",
        likely="a conversion that saturates where it did not, or the other way round",
    )


@pytest.mark.parametrize("way", CONVERSIONS)
@pytest.mark.amp_parametrize("name", low_formats)
def test_what_is_too_large(amp: SuiteAmp, name: str, way: str) -> None:
    """Values up to half an ulp above the maximum round to it; the next float32 becomes inf or NaN, or saturates."""
    form = FORMATS[name]
    last, tie = form.max, form.overflows_at
    above = float(np.nextafter(np.float32(tie), np.float32(math.inf)))
    below = float(np.nextafter(np.float32(tie), np.float32(0)))
    tied = last if form is FLOAT8_E4M3FN else _over(form, amp, tie, way)
    for sign in (1.0, -1.0):
        for value, expected in ((last, last), (below, last), (tie, tied), (above, _over(form, amp, above, way))):
            _hold(amp, form, sign * value, math.copysign(expected, sign), way)
        for value in (2 * above, 4.0 * last, math.inf):
            if math.isinf(value) or value < 2.0**128:
                _hold(amp, form, sign * value, _over(form, amp, sign * value, way), way)


@pytest.mark.parametrize("way", CONVERSIONS)
@pytest.mark.amp_parametrize("name", low_formats)
def test_what_is_too_small(amp: SuiteAmp, name: str, way: str) -> None:
    """Subnormals are exact; half the smallest rounds to zero, the next float32 does not; zeros keep their sign."""
    form = FORMATS[name]
    least = form.smallest_subnormal
    above = float(np.nextafter(np.float32(least / 2), np.float32(1)))
    for sign in (1.0, -1.0):
        for value, expected in ((least, least), (above, least), (least / 2, 0.0), (least / 4, 0.0), (0.0, 0.0)):
            actual = _convert(amp, form, sign * value, way)
            assert abs(actual) == expected, f"{sign * value!r} becomes {actual!r} by {way}"
            assert math.copysign(1.0, actual) == sign


@pytest.mark.parametrize("way", CONVERSIONS)
@pytest.mark.amp_parametrize("name", low_formats)
def test_nan_stays_nan(amp: SuiteAmp, name: str, way: str) -> None:
    """Convert NaN of every payload and sign: one with only low bits set must not become an infinity."""
    form = FORMATS[name]
    payloads = [0x7F800001, 0x7FC00000, 0x7FFFFFFF, -0x007FFFFF, -0x00400000, -1, 0x7F800100]
    inputs = torch.tensor(payloads * 12, dtype=torch.int32).view(torch.float32).to(amp.device.torch_device)
    assert inputs.isnan().all()
    assert np.isnan(converted(CONVERSIONS[way](inputs, form.dtype), form)).all()


@pytest.mark.amp(dtypes=["fp16"])
def test_the_thresholds_of_fp16(amp: SuiteAmp) -> None:
    """The well-known thresholds 65504, 65520, 2**-14, 2**-24 and 2**-25 apply to products as to conversions."""
    one = torch.ones(16, 16, device=amp.device.torch_device)
    assert _convert(amp, autocast_format(amp.precision), 65519.99609375, "to") == 65504.0
    assert _convert(amp, autocast_format(amp.precision), 65520.0, "to") == math.inf
    with amp.autocast():
        top = (one * (65504.0 / 16)) @ one
        over = (one * (65536.0 / 16)) @ one
        least = (one * 2.0**-16) @ (one * 2.0**-12)
        lost = (one * 2.0**-17) @ (one * 2.0**-13)
    assert top.dtype is torch.float16
    assert set(top.flatten().tolist()) == {65504.0}
    assert set(over.flatten().tolist()) == {math.inf}
    assert set(least.flatten().tolist()) == {2.0**-24}
    assert set(lost.flatten().tolist()) == {0.0}


@pytest.mark.amp(dtypes=["bf16"])
def test_bf16_has_the_range_of_float32(amp: SuiteAmp) -> None:
    """Values that overflow or underflow in fp16 are normal in bf16: conversion rounds the significand only."""
    exponents = torch.arange(-126, 128, dtype=torch.float64)
    powers = torch.exp2(exponents).float().to(amp.device.torch_device)
    assert torch.equal(powers.bfloat16().float(), powers)
    assert (1.75 * powers[:-1]).bfloat16().isfinite().all()


@pytest.mark.amp(dtypes=["fp16"])
def test_the_first_loss_scale_moves_gradients_into_range(amp: SuiteAmp) -> None:
    """Scaled by GradScaler's initial 2**16, a gradient of 2**-40 is exact in fp16 and not zero; 2**0 overflows."""
    gradient = torch.tensor([2.0**-40, 2.0**-25, 1.0], device=amp.device.torch_device)
    assert gradient.half().tolist() == [0.0, 0.0, 1.0]
    assert (gradient * 2.0**16).half().tolist() == [2.0**-24, 2.0**-9, math.inf]
