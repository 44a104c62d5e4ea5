"""Bits, eps, largest, smallest normal and subnormal value of each format: torch, numpy and ml_dtypes agree on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.formats import FORMATS, Format, converted, from_patterns, patterns_of
from pytest_amp.precision import PRECISIONS
from pytest_amp.run.targets import Target

from ..formats.numbers import low_formats


def _stored(target: Target) -> Iterable[str]:
    """Return every format that has tensors, float32 among them."""
    return ("fp32", *low_formats(target))


def _parameters(form: Format) -> dict[str, float]:
    return {
        "bits": form.bits,
        "eps": form.eps,
        "max": form.max,
        "min": -form.max,
        "smallest_normal": form.smallest_normal,
        "smallest_subnormal": form.smallest_subnormal,
    }


@pytest.mark.amp_parametrize("name", _stored)
def test_torch_knows_the_format(amp: SuiteAmp, name: str) -> None:
    """``torch.finfo`` has no smallest subnormal; ``tiny`` is its older name of the smallest normal value."""
    form = FORMATS[name]
    info: Any = torch.finfo(form.dtype)
    expected = _parameters(form)
    del expected["smallest_subnormal"]
    assert {key: getattr(info, key) for key in expected} == expected
    assert info.tiny == info.smallest_normal
    assert torch.empty((), dtype=form.dtype, device=amp.device.torch_device).element_size() * 8 == form.bits


@pytest.mark.amp_parametrize("name", _stored)
def test_ml_dtypes_knows_the_format(amp: SuiteAmp, name: str) -> None:
    """Compare with ml_dtypes, if installed: an independent implementation of the formats and of all bit patterns."""
    ml_dtypes = pytest.importorskip(
        "ml_dtypes", reason="ml_dtypes, an independent implementation of these formats, is not installed"
    )
    form = FORMATS[name]
    dtype = np.dtype(getattr(ml_dtypes, form.dtype_name, form.dtype_name))
    info = ml_dtypes.finfo(dtype)
    actual = {key: float(getattr(info, key)) for key in _parameters(form)}
    assert actual == _parameters(form)
    if form.bits <= 16:
        patterns = np.arange(1 << form.bits)
        with np.errstate(invalid="ignore"):  # signalling NaNs are among the patterns
            values = patterns.astype(f"uint{form.bits}").view(dtype).astype(np.float64)
        assert np.array_equal(values, form.decode(patterns), equal_nan=True)
    amp.observe(f"ml_dtypes/{name}", ml_dtypes.__version__, kind="state")


@pytest.mark.amp_parametrize("name", lambda target: ["fp32", *(["fp16"] if target.precision.name == "fp16" else [])])
def test_numpy_knows_the_format(amp: SuiteAmp, name: str) -> None:
    """``numpy.finfo`` of numpy's two formats, and its own conversion from float64 on the format's neighbours."""
    form = FORMATS[name]
    dtype = np.dtype(form.dtype_name)
    actual = {key: float(getattr(np.finfo(dtype), key)) for key in _parameters(form)}
    assert actual == _parameters(form)
    generator = np.random.default_rng(amp.config.seed)
    values = np.ldexp(generator.standard_normal(4096), generator.integers(-160, 130, 4096))
    with np.errstate(over="ignore"):
        numpys = values.astype(dtype).astype(np.float64)
    assert np.array_equal(numpys, form.round(values))


def test_the_plugins_own_precision_is_the_format(amp: SuiteAmp) -> None:
    """``amp_precision`` has the parameters of the format; all tolerances are computed from it."""
    precision, form = amp.precision, FORMATS[amp.precision.name]
    pairs = [(getattr(precision, name), getattr(form, name)) for name in ("bits", "eps", "u", "max", "smallest_normal")]
    assert [a for a, _ in pairs] == [b for _, b in pairs]
    assert {name: precision.bits for name, precision in PRECISIONS.items()} == {
        name: FORMATS[name].bits for name in PRECISIONS
    }


@pytest.mark.amp_parametrize("name", low_formats)
def test_every_pattern_has_its_value(amp: SuiteAmp, name: str) -> None:
    """All 256 or 65536 patterns keep their bits in float32 and back; NaN stays NaN, zeros keep their signs."""
    form = FORMATS[name]
    patterns = np.arange(1 << form.bits)
    expected = form.decode(patterns)
    tensor = from_patterns(patterns, form, amp.device.torch_device)
    float32 = tensor.float()
    values = float32.cpu().double().numpy()
    assert np.array_equal(values, expected, equal_nan=True)
    assert np.array_equal(np.signbit(values[expected == 0]), patterns[expected == 0] != 0)
    back = float32.to(form.dtype)
    number = ~np.isnan(expected)
    assert np.array_equal(patterns_of(back, form)[number], patterns[number])
    assert np.isnan(converted(back, form)[~number]).all()


@pytest.mark.amp_parametrize("name", low_formats)
def test_the_extremes_are_where_arithmetic_finds_them(amp: SuiteAmp, name: str) -> None:
    """Find the step at one, the largest finite and the smallest positive value by conversions on the device alone."""
    form = FORMATS[name]
    exponents = torch.arange(-160, 129, dtype=torch.float64)
    powers = torch.exp2(exponents).float().to(amp.device.torch_device)
    retained = (powers.to(form.dtype).float() == powers).cpu() & powers.cpu().isfinite() & (powers.cpu() > 0)
    assert float(torch.exp2(exponents[retained][0])) == form.smallest_subnormal
    assert float(torch.exp2(exponents[retained][-1])) <= form.max < float(torch.exp2(exponents[retained][-1] + 1))
    steps = 1 + torch.exp2(-torch.arange(1.0, 24.0)).to(amp.device.torch_device)
    assert float(steps[steps.to(form.dtype).float() == steps].min()) == 1 + form.eps
