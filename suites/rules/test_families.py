"""Operators that users consider equivalent have the same rule; where torch breaks that, known.toml names the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch.nn import functional

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import dtype_name
from pytest_amp.rules.registry import qualified
from pytest_amp.rules.spec import RuleName
from pytest_amp.run.targets import Target

from .operators import Examiner, overloads_with

pytestmark = pytest.mark.amp(fake=True)

_Make = Callable[..., torch.Tensor]

_PRODUCTS: dict[str, Callable[[_Make], torch.Tensor]] = {
    "_addmm_activation": lambda t: torch._addmm_activation(t(8), t(4, 8), t(8, 8)),  # noqa: SLF001  # as reported
    "addmm": lambda t: torch.addmm(t(8), t(4, 8), t(8, 8)),
    "baddbmm": lambda t: torch.baddbmm(t(2, 4, 8), t(2, 4, 8), t(2, 8, 8)),
    "bmm": lambda t: torch.bmm(t(2, 4, 8), t(2, 8, 8)),
    "linear": lambda t: functional.linear(t(4, 8), t(8, 8), t(8)),
    "matmul": lambda t: t(4, 8) @ t(8, 8),
    "mm": lambda t: torch.mm(t(4, 8), t(8, 8)),
}

_WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "index_add": lambda into, index, values: into.index_add(0, index, values),
    "index_copy": lambda into, index, values: into.index_copy(0, index, values),
    "index_put": lambda into, index, values: torch.index_put(into, (index,), values),
    "scatter_add": lambda into, index, values: into.scatter_add(0, torch.stack([index] * 3, 1), values),
}


def _maker(amp: SuiteAmp) -> _Make:
    def make(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.ones(shape, dtype=dtype, device=amp.device.torch_device)

    return make


def _dtype_of(amp: SuiteAmp, call: Callable[[_Make], torch.Tensor]) -> torch.dtype:
    with amp.device.tensors(), torch.no_grad(), amp.device.autocast(amp.dtype):
        return call(_maker(amp)).dtype


@pytest.mark.amp_parametrize("product", lambda _: _PRODUCTS)
def test_products_run_in_the_autocast_dtype(amp: SuiteAmp, product: str) -> None:
    dtype = _dtype_of(amp, _PRODUCTS[product])
    amp.observe(f"product {product}", dtype_name(dtype), kind="dtype")
    if dtype != amp.dtype:
        raise AmpFailure(f"{product} of float32 tensors gave {dtype} under autocast({amp.device.type}, {amp.dtype})")


def _writes(target: Target) -> Iterable[Any]:
    return _WRITES if target.device.type == "cpu" else ["index_put", "scatter_add"]


@pytest.mark.amp_parametrize("write", _writes)
def test_indexed_writes_promote(amp: SuiteAmp, write: str) -> None:
    def call(make: _Make) -> torch.Tensor:
        return _WRITES[write](make(4, 3), make(2, dtype=torch.int64), make(2, 3, dtype=amp.dtype))

    dtype = _dtype_of(amp, call)
    amp.observe(f"write {write}", dtype_name(dtype), kind="dtype")
    assert dtype == torch.float32


def test_16_bit_formats_that_meet_are_promoted(amp: SuiteAmp, examine: Examiner) -> None:
    """Require the fix; test_hand_cast tests the current behaviour, and detects an operator that is fixed first."""
    overloads = overloads_with(RuleName.PROMOTE)(amp.target)
    refused = [name for name in overloads if examine("other_half", qualified(name)).refused]
    if refused:
        raise AmpFailure(f"under autocast({amp.device.type}, {amp.dtype}) the other format is refused: {refused}")


@pytest.mark.amp(fake=True, devices=["cuda", "xpu", "mps", "mtia"])
def test_a_float32_bias_promotes_bilinear(amp: SuiteAmp) -> None:
    def call(make: _Make) -> torch.Tensor:
        low = amp.dtype
        return functional.bilinear(make(2, 2, dtype=low), make(2, 2, dtype=low), make(3, 2, 2, dtype=low), make(3))

    assert _dtype_of(amp, call) == torch.float32


@pytest.mark.amp_parametrize("arguments", lambda _: ["float32 with low weights"])
def test_layer_norm_takes_mixed_dtypes(amp: SuiteAmp, arguments: str) -> None:
    def call(make: _Make) -> torch.Tensor:
        return functional.layer_norm(make(2, 8), (8,), make(8, dtype=amp.dtype), make(8, dtype=amp.dtype))

    dtype = _dtype_of(amp, call)
    amp.observe(f"layer_norm, {arguments}", dtype_name(dtype), kind="dtype")
    assert dtype == torch.float32


def test_distances_are_float32_at_every_size(amp: SuiteAmp) -> None:
    """A different kernel above 25 points must return float32, too (pytorch/pytorch#136748)."""
    for points in (4, 40):

        def call(make: _Make, points: int = points) -> torch.Tensor:
            return torch.cdist(make(3, 8, dtype=amp.dtype), make(points, 8, dtype=amp.dtype))

        dtype = _dtype_of(amp, call)
        amp.observe(f"cdist to {points} points", dtype_name(dtype), kind="dtype")
        assert dtype == torch.float32
