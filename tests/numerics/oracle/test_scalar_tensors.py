"""A float32 tensor without dimensions among low-precision ones: rounded where the CPU's kernel casts it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pytest_amp.numerics.oracle import verdict
from pytest_amp.numerics.oracle.observer import Observer
from tests.numerics.oracle.test_sums import DTYPES

#: A value that neither low dtype represents.
NUMBER = 0.7212345

FUNCTIONS: dict[str, tuple[str, Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "a first factor": ("mul.Tensor", lambda s, x, _: s * x),
    "a second factor": ("mul.Tensor", lambda s, x, _: x * s),
    "a factor in place": ("mul_.Tensor", lambda s, x, _: x.clone().mul_(s)),
    "a dividend": ("div.Tensor", lambda s, x, _: s / x),
    "a divisor": ("div.Tensor", lambda s, x, _: x / s),
    "a term": ("add.Tensor", lambda s, x, _: s + x),
    "a base": ("pow.Tensor_Tensor", lambda s, x, _: s**x),
    "an exponent in place": ("pow_.Tensor", lambda s, x, _: x.clone().pow_(s)),
    "an angle in place": ("atan2_", lambda s, x, _: x.clone().atan2_(s)),
    "a leg": ("hypot", lambda s, x, _: torch.hypot(s, x)),
    "a logarithm": ("logaddexp", lambda s, x, _: torch.logaddexp(x, s)),
    "a logarithm to base 2": ("logaddexp2", lambda s, x, _: torch.logaddexp2(s, x)),
    "a weight in place": ("lerp_.Tensor", lambda s, x, y: x.clone().lerp_(y, s)),
    "a term of a product": ("addcmul", lambda s, x, y: torch.addcmul(s, x, y, value=0.3)),
    "a factor of a product": ("addcmul", lambda s, x, y: torch.addcmul(x, y, s, value=0.3)),
    "a divisor of a quotient": ("addcdiv_", lambda s, x, y: x.clone().addcdiv_(y, s)),
    "a gradient of silu": ("silu_backward", lambda s, x, _: torch.ops.aten.silu_backward(s, x)),
    "a gradient of tanh": ("tanh_backward", lambda s, x, _: torch.ops.aten.tanh_backward(s, x)),
}


@DTYPES
@pytest.mark.parametrize("name", FUNCTIONS)
def test_scalar_tensor_is_rounded_where_the_kernel_casts_it(name: str, dtype: torch.dtype) -> None:
    operator, function = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(0)
    x, y = ((2 * torch.rand(16, 128, generator=generator) + 0.3).to(dtype) for _ in range(2))
    observer = Observer("cpu", dtype)
    with observer.on({}):
        function(torch.tensor(NUMBER), x, y)
    (call,) = (call for call in observer.observed_calls if call.operator == f"aten::{operator}")
    (result,) = call.results
    assert result.dtype == dtype
    assert result.equal >= 0.99 * result.elements, result
    assert not verdict.faults(observer.observed_calls, dtype)
