"""Python numbers and low-precision tensors: conversion, products of both, and reading back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.formats import FORMATS, from_patterns, neighbours
from pytest_amp.formats.format import Doubles

from ..formats.numbers import autocast_format, expect_rounded

#: Ways to convert a Python number to an element of a tensor.
FILLS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "full": lambda x, number: torch.full((1,), number, dtype=x.dtype, device=x.device),
    "full_like": torch.full_like,
    "new_full": lambda x, number: x.new_full((1,), number),
    "new_tensor": lambda x, number: x.new_tensor([number]),
    "fill_": lambda x, number: x.clone().fill_(number),
    "masked_fill": lambda x, number: x.masked_fill(x == 0, number),
    "index_fill": lambda x, number: x.index_fill(0, torch.zeros(1, dtype=torch.int64, device=x.device), number),
    "where": lambda x, number: torch.where(x == 0, number, x),
    "an element": lambda x, number: _with_element(x.clone(), number),
    "pad": lambda x, number: torch.nn.functional.pad(x, (0, 1), value=number)[1:],
    "nan_to_num": lambda x, number: (x / 0).nan_to_num(number),
}


def _with_element(x: Tensor, number: float) -> Tensor:
    x[0] = number
    return x


def _near_ties(amp: SuiteAmp) -> Doubles:
    """Return ties of the format, and their float32 neighbours, that are within its range."""
    form = autocast_format(amp.precision)
    chosen = np.concatenate(list(neighbours(form).named().values()))
    chosen = chosen[np.abs(chosen) < form.max / 2]
    some: Doubles = chosen[np.linspace(0, len(chosen) - 1, 200).astype(np.int64)]
    return some


@pytest.mark.parametrize("way", FILLS)
def test_a_number_becomes_the_nearest_element(amp: SuiteAmp, way: str) -> None:
    """Every way of writing a number rounds ties to even, as a conversion from float32 does."""
    zero = torch.zeros(1, dtype=amp.dtype, device=amp.device.torch_device)
    numbers = _near_ties(amp)
    actual = torch.cat([FILLS[way](zero, float(number)) for number in numbers])
    assert actual.dtype is amp.dtype
    expect_rounded(amp, autocast_format(amp.precision), numbers, actual, way=way)


#: Products and quotients; before an addition, a CPU rounds the number to the tensor's dtype (torch 2.13).
ARITHMETIC: dict[str, Callable[[Tensor, float], Tensor]] = {
    "times": lambda x, number: x * number,
    "a number times": lambda x, number: number * x,
    "times in place": lambda x, number: x.clone().mul_(number),
    "mul": torch.mul,
    "divided by": lambda x, number: x / number,
    "divided in place": lambda x, number: x.clone().div_(number),
}


@pytest.mark.parametrize("way", ARITHMETIC)
def test_a_number_beside_low_ones_keeps_its_bits(amp: SuiteAmp, way: str) -> None:
    """The result is rounded once, and the number (a learning rate, a temperature, a slope) is not rounded first."""
    for number in (1 + 0.45 * amp.precision.eps, 0.1, 3.3):
        x = torch.randn(4096).to(amp.dtype)
        rounded = float(torch.tensor(number).to(amp.dtype))
        exact = ARITHMETIC[way](x.float(), number).to(amp.dtype)
        first = ARITHMETIC[way](x.float(), rounded).to(amp.dtype)
        actual = ARITHMETIC[way](x.to(amp.device.torch_device), number).cpu()
        assert actual.dtype is amp.dtype
        # A kernel may multiply by a reciprocal: the rounded result occasionally differs.
        same, distinct = float((actual == exact).float().mean()), float((first == exact).float().mean())
        assert distinct < 0.95, "rounding the numbers first would not be detected"
        if same < 0.99:
            raise AmpFailure(
                f"{way} {number!r}: {same:.1%} of the results on {amp.target.id} are float32's, rounded once",
                before="99% or more; the others by a reciprocal",
                now=f"{actual[actual != exact][0]!r} on {amp.device.describe()}",
                likely="the number is rounded to the tensor's dtype before it is used",
            )


def test_numbers_are_read_back_as_they_are(amp: SuiteAmp) -> None:
    """Read every pattern as a list, and one value of each exponent by itself."""
    form = FORMATS[amp.precision.name]
    patterns = np.arange(1 << form.bits)
    tensor, expected = from_patterns(patterns, form, amp.device.torch_device), form.decode(patterns)
    assert np.array_equal(np.array(tensor.tolist()), expected, equal_nan=True)
    for index in range(0, 1 << form.bits, 257):
        read = np.array([tensor[index].item(), float(tensor[index])])
        assert np.array_equal(read, expected[[index, index]], equal_nan=True)


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8", "bool", "float64"])
def test_low_numbers_become_others(amp: SuiteAmp, name: str) -> None:
    """Integers are truncated; every pattern within the range of the other dtype is converted."""
    dtype, form = getattr(torch, name), FORMATS[amp.precision.name]
    patterns = np.arange(1 << form.bits)
    values = form.decode(patterns)
    if dtype is torch.bool:
        chosen, expected = np.isfinite(values), values != 0
    elif dtype.is_floating_point:
        chosen, expected = ~np.isnan(values), values
    else:
        bounds = torch.iinfo(dtype)
        with np.errstate(invalid="ignore"):
            chosen = (np.abs(values) < bounds.max) & (values >= min(bounds.min + 1, 0))
        expected = np.trunc(values)
    actual = from_patterns(patterns[chosen], form, amp.device.torch_device).to(dtype)
    assert actual.dtype is dtype
    assert np.array_equal(actual.cpu().numpy(), expected[chosen])
