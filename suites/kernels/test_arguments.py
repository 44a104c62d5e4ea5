"""Operators with every argument (dimensions, modes, masks, sizes): results and gradients agree with float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_amp.amp import SuiteAmp
from pytest_amp.devices import DeviceKind
from pytest_amp.numerics import relative_error
from pytest_amp.precision import FP32, dtype_name

from ..gradients.expectations import expect_near
from .arguments import PRODUCTS, ROWS, Row


def _values(amp: SuiteAmp, row: Row) -> list[Tensor]:
    """Return the arguments' values: those passed in the low dtype, or cast to it, are representable in it."""
    shapes = (*row.low, *row.wide)
    if not row.distinct:
        low = len(shapes) if row in PRODUCTS.values() else len(row.low)
        values = [torch.randn(shape) for shape in shapes]
        return [*(value.to(amp.dtype) for value in values[:low]), *values[low:]]
    # Consecutive bit patterns, starting at 1.0: all values are distinct.
    counts = [torch.Size(shape).numel() for shape in shapes]
    one: Any = torch.ones(1, dtype=amp.dtype).view(torch.int16)
    drawn: Any = (one + torch.randperm(sum(counts)).to(torch.int16)).view(amp.dtype)
    return [part.view(shape) for part, shape in zip(drawn.split(counts), shapes, strict=True)]


#: Allowed error of float32 results in units of float32's u, for sums of some thousand terms.
FEW = 64


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("name", ROWS)
def test_operator_with_arguments(amp: SuiteAmp, name: str) -> None:
    """Detect a kernel that ignores an argument, and a wrong kernel that is selected by an argument."""
    row, device = ROWS[name], amp.device.torch_device
    returned = {}

    def measured() -> dict[str, float]:
        values = _values(amp, row)
        exact = [value.double().requires_grad_() for value in values]
        leaves = [
            value.to(device, amp.dtype if index < len(row.low) else torch.float32).requires_grad_()
            for index, value in enumerate(values)
        ]
        expected = row.function(*exact)
        with amp.autocast():
            result = row.function(*leaves)
        assert result.shape == expected.shape
        gradient = torch.randn(expected.shape).to(amp.dtype)
        if expected.requires_grad:
            torch.autograd.backward(expected, gradient.double())
            torch.autograd.backward(result, gradient.to(device, result.dtype))
        errors = {"result": relative_error(result, expected)}
        for index, (a, b) in enumerate(zip(leaves, exact, strict=True)):
            has = "no" if a.grad is None else "a"
            assert (a.grad is None) == (b.grad is None), f"argument {index} has {has} gradient"
            if a.grad is not None and b.grad is not None:
                assert a.grad.dtype is a.dtype
                errors[f"gradient.{index}"] = relative_error(a.grad.to_dense(), b.grad.to_dense())
        returned["result"] = result.dtype
        return errors

    errors, over_seeds = amp.over_seeds(measured)
    dtype = returned["result"]
    scale = amp.config.tolerance_scale
    here = amp.device.kind is DeviceKind.CPU
    most = row.most if here else row.most_elsewhere or row.most
    limits = dict.fromkeys(errors, most * amp.precision.u * scale)
    if dtype is torch.float32 and not (row.rounded or (row.rounded_elsewhere and not here)):
        wide = errors if not row.low else ["result"]
        limits |= dict.fromkeys(wide, FEW * FP32.u * scale)
    amp.observe(f"arguments.{name}/dtype", dtype_name(dtype), kind="dtype")
    assert dtype is amp.dtype or name not in PRODUCTS, f"{name} returns {dtype}"
    expect_near(
        amp,
        f"arguments.{name}",
        errors,
        limits,
        over_seeds=over_seeds,
        measure=measured,
        dtypes=dict.fromkeys(errors, dtype),
        exact="float64",
        before="float64 on the same values and arguments",
        likely="an argument is ignored, or its kernel accumulates in the low dtype",
    )
