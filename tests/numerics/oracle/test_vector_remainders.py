"""Vector remainders on a CPU: kernels round intermediate results of these elements only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pytest_amp.numerics.oracle import formulas
from pytest_amp.numerics.oracle.models import ModelName, model_of
from pytest_amp.numerics.oracle.observer import Observer

pytestmark = pytest.mark.usefixtures("one_thread")

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "root": lambda x: (x.abs() + 0.5).rsqrt(),
    "power": lambda x: (x.abs() + 0.5) ** -0.5,
    "root, gaps": lambda x: (x.abs() + 0.5)[:, ::2].rsqrt(),
    "sum": lambda x: torch.add(x, x.flip(0), alpha=0.3),
    "sum, gaps": lambda x: torch.add(x[:, ::2], x.flip(0)[:, ::2], alpha=0.3),
    "difference": lambda x: torch.sub(x, x[:1], alpha=0.3),
    "difference of float32": lambda x: torch.sub(x.float(), x[:1], alpha=0.3),
    "sum without a multiple": lambda x: x + x.flip(0),
}


def shares(name: str, dtype: torch.dtype) -> list[float]:
    """Return the share of values equal to the model in each call's result, of 1 to 888 values."""
    actual = []
    for shape in ((1, 1), (31, 1), (9, 7), (32, 2), (37, 24)):
        observer = Observer("cpu", dtype)
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
        with observer.on({}):
            CALLS[name](x)
        (result,) = observer.observed_calls[-1].results
        actual.append(result.equal / result.elements)
    return actual


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", CALLS)
def test_every_element_of_a_remainder_is_predicted(name: str, dtype: torch.dtype) -> None:
    assert shares(name, dtype) == [1.0] * 5


@pytest.mark.parametrize("overload", ["aten::rsqrt", "aten::add.Tensor", "aten::sub.Tensor"])
def test_operators_with_remainders_have_two_models_on_a_cpu_only(overload: str) -> None:
    assert model_of(overload, "cpu", "bf16").name is ModelName.EITHER
    assert model_of(overload, "cuda", "bf16").name is ModelName.ONCE
    assert ("either", overload) in formulas.BY_MODEL
    assert overload in formulas.OTHER_WAYS
