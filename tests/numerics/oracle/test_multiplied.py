"""Products of low-precision values on a CPU: each factor rounds, in vectors if contiguous, else in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_amp.numerics.oracle import formulas
from pytest_amp.numerics.oracle.models import ModelName, model_of
from pytest_amp.numerics.oracle.observer import Observer
from pytest_amp.numerics.oracle.verdict import faults
from tests.numerics.planted import kernel

pytestmark = pytest.mark.usefixtures("one_thread")

#: Of 7 x 602 values near one.
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x.prod(1),
    "rows, kept": lambda x: x.prod(-1, keepdim=True),
    "columns": lambda x: x.prod(0),
    "rows that lie apart": lambda x: x.t().contiguous().t().prod(1),
    "columns that lie side by side": lambda x: x.t().contiguous().t().prod(0),
    "in the middle": lambda x: x.view(2, 301, 7).prod(1),
    "gaps": lambda x: x[:, ::2].prod(1),
    "63 numbers": lambda x: x[:, :63].contiguous().prod(1),
    "64 numbers": lambda x: x[:, :64].contiguous().prod(1),
    "parts of rows": lambda x: x[:, :300].prod(1),
    "all": lambda x: x.prod(),
    "all, turned": lambda x: x.t().prod(),
    "all, gaps": lambda x: x[:, ::2].prod(),
    "all, parts of rows": lambda x: x[:, :300].prod(),
    "all, three dimensions": lambda x: x.view(7, 2, 301).permute(1, 2, 0).prod(),
    "float32 of low numbers": lambda x: x.prod(1, dtype=torch.float32),
    "low of float32 numbers": lambda x: (x.float() * 1.001).prod(0, dtype=x.dtype),
    "one number": lambda x: x[0, 0].prod(),
}


def observed_by(name: str, dtype: torch.dtype) -> Observer:
    observer = Observer("cpu", dtype)
    x = (1 + torch.randn(7, 602, generator=torch.Generator().manual_seed(0)) / 64).to(dtype)
    with observer.on({}):
        CALLS[name](x)
    return observer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", CALLS)
def test_every_element_of_a_product_is_predicted(name: str, dtype: torch.dtype) -> None:
    observer = observed_by(name, dtype)
    assert faults(observer.observed_calls, dtype) == []
    (result,) = observer.observed_calls[-1].results
    assert "prod" in observer.observed_calls[-1].operator
    assert result.equal == result.elements


def test_product_without_half_of_its_factors_is_red() -> None:
    def losing(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, *remaining = args
        return original(x if x.dtype == torch.float64 else x[:, 300:], *remaining, **kwargs)

    with kernel("prod.dim_int", losing):
        (fault,) = faults(observed_by("rows", torch.bfloat16).observed_calls, torch.bfloat16)
    assert fault.operator == "prod.dim_int"


def test_empty_product_is_observed_without_a_problem() -> None:
    observer = Observer("cpu", torch.bfloat16)
    with observer.on({}):
        assert torch.ones(0, 3, dtype=torch.bfloat16).prod(0).tolist() == [1.0] * 3
    assert [call.problem for call in observer.observed_calls] == [None] * len(observer.observed_calls)


@pytest.mark.parametrize("overload", ["aten::prod", "aten::prod.dim_int"])
def test_cuda_multiplies_in_float32(overload: str) -> None:
    assert model_of(overload, "cpu", "bf16").name is ModelName.EITHER
    assert model_of(overload, "cuda", "bf16").name is ModelName.ONCE
    assert ("either", overload) in formulas.BY_MODEL
