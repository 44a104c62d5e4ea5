"""Products of low-precision values accumulate in float32: the smallest term that a sum retains, and its error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as f

from pytest_amp.amp import SuiteAmp
from pytest_amp.devices import DeviceKind
from pytest_amp.failure import AmpFailure
from pytest_amp.formats import FORMATS, SIZE, survives

_LENGTH = 1024


def _retained_bits(amp: SuiteAmp) -> int:
    """Return the largest k for which a sum retains 2**-k added to 1, as it does for every smaller k."""
    rows = 16 if amp.device.kind is DeviceKind.CPU else SIZE
    count = 0
    while count < 40 and survives(count + 1, amp.device.torch_device, amp.dtype, rows=rows):
        count += 1
    return count


def test_a_sum_keeps_what_float32_keeps(amp: SuiteAmp) -> None:
    """Sum 1 + 2**-k - 1 with distant terms: fp16 loses 2**-k after k = 10, bf16 after 7; float32 keeps it up to 23."""
    bits = FORMATS[amp.precision.name].mantissa_bits
    retained = _retained_bits(amp)
    amp.observe("bits that a sum keeps", retained, kind="count", unit="bits")
    if retained < 20:
        raise AmpFailure(
            f"a product of {amp.precision.name} on {amp.target.id} retains no term below 2**-{retained} next to 1",
            label_before="rule",
            before="2**-23, as sums in float32 do",
            now=f"2**-{retained}; the format itself has {bits} bits, on {amp.device.describe()}",
            likely="the kernel accumulates in the low dtype, or splits its sums and rounds the parts",
        )


@pytest.mark.amp(devices=["cuda"], dtypes=["fp16"])
def test_a_sum_in_fp16_would_show(amp: SuiteAmp) -> None:
    """Prove that the test above can fail: torch (2.7 and later) has a switch for sums in fp16, which lose the terms."""
    settings: Any = torch.backends.cuda.matmul
    if not hasattr(settings, "allow_fp16_accumulation"):
        pytest.skip(f"torch {torch.__version__} has no allow_fp16_accumulation")
    before = settings.allow_fp16_accumulation
    settings.allow_fp16_accumulation = True
    try:
        retained = _retained_bits(amp)
    finally:
        settings.allow_fp16_accumulation = before
    assert retained <= FORMATS["fp16"].mantissa_bits


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def _linear(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return f.linear(a, b.t().contiguous())


def _bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.bmm(a.expand(3, -1, -1), b.expand(3, -1, -1))[1]


def _conv1d(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return f.conv1d(a[:, :, None], b.t()[:, :, None].contiguous())[:, :, 0]


_PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "matmul": _matmul,
    "linear": _linear,
    "bmm": _bmm,
    "conv1d": _conv1d,
}


@pytest.mark.parametrize("product", _PRODUCTS)
def test_many_small_terms_beside_a_large_one(amp: SuiteAmp, product: str) -> None:
    """Compute 1 + 1023 * 2**-11: sums in fp16 and bf16 stay at 1, since each term is half a step or less."""
    a = torch.ones(64, _LENGTH, dtype=amp.dtype, device=amp.device.torch_device)
    b = torch.full((_LENGTH, 64), 2.0**-11, dtype=amp.dtype, device=amp.device.torch_device)
    b[0] = 1
    actual = _PRODUCTS[product](a, b)
    exact = torch.tensor(1 + (_LENGTH - 1) * 2.0**-11, dtype=torch.float64).to(amp.dtype)
    assert actual.dtype is amp.dtype
    assert set(actual.flatten().tolist()) == {exact.item()}


@pytest.mark.parametrize("product", _PRODUCTS)
def test_the_error_is_that_of_one_rounding(amp: SuiteAmp, product: str) -> None:
    """The error of random products is within a tenth of that of exact sums that are rounded once to the format."""
    torch.manual_seed(amp.config.seed)
    a, b = (torch.randn(*shape).to(amp.dtype).to(amp.device.torch_device) for shape in ((64, _LENGTH), (_LENGTH, 64)))
    exact = a.cpu().double() @ b.cpu().double()
    actual = _PRODUCTS[product](a, b).double().cpu()
    once = exact.to(amp.dtype).double()
    error, rounding = (float((values - exact).norm() / exact.norm()) for values in (actual, once))
    amp.observe(f"{product}/error", error, kind="error", unit="relative L2", allowed=1.1 * rounding)
    assert error <= 1.1 * rounding, f"an error of {error:.3g}; one rounding has {rounding:.3g}"
    assert error >= 0.9 * rounding, "more exact than the format: the product was not computed in it"
