"""Gradients that a CPU accumulates in the low dtype: overlapping windows, borders that are read repeatedly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from pytest_amp.numerics.oracle.observer import Observer
from pytest_amp.numerics.oracle.verdict import faults

pytestmark = pytest.mark.usefixtures("one_thread")

CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "a maximum of a stem": lambda x: f.max_pool2d(x, 3, 2, 1),
    "a maximum at each place": lambda x: f.max_pool2d(x, 3, 1, 1, ceil_mode=True, dilation=2),
    "a maximum in channels last": lambda x: f.max_pool2d(x.contiguous(memory_format=torch.channels_last), 3, 1),
    "a maximum in one dimension": lambda x: f.max_pool1d(x.flatten(2), 3, 1),
    "a maximum in three dimensions": lambda x: f.max_pool3d(x.reshape(2, 2, 4, 13, 12), 3, 1),
    "an adaptive maximum": lambda x: f.adaptive_max_pool2d(x, 7),
    "an average": lambda x: f.avg_pool2d(x, 3, 2, 1),
    "an average without what is padded": lambda x: f.avg_pool2d(
        x, (3, 5), (2, 3), (1, 2), count_include_pad=False, ceil_mode=True
    ),
    "an average with a divisor": lambda x: f.avg_pool2d(x, 3, 1, 1, divisor_override=7),
    "an average in one dimension": lambda x: f.avg_pool1d(x.flatten(2), 5, 2, 1),
    "windows side by side": lambda x: f.avg_pool2d(x, 2),
    **{
        f"{mode}, {dims} dimensions": partial(f.pad, pad=(3, 5, 2, 4, 1, 2)[: 2 * dims], mode=mode)
        for mode in ("reflect", "replicate")
        for dims in (1, 2, 3)
    },
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("name", CASES)
def test_scattered_gradients_follow_the_order_of_sums(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 8, 13, 12, generator=generator).to(dtype).requires_grad_()
    observer = Observer("cpu", dtype)
    shape = {"1 dim": (2, 8, 156), "3 dim": (2, 2, 4, 13, 12)}.get(name.partition(", ")[2][:5], x.shape)
    with observer.on({}):
        result = CASES[name](x.view(shape))
        torch.autograd.backward(result, torch.randn(result.shape, generator=generator).to(dtype))
    going_back = [call for call in observer.observed_calls if "_pool" in call.operator or "_pad" in call.operator]
    assert any(call.operator.endswith("_backward") for call in going_back)
    assert faults(observer.observed_calls, dtype) == []
    for call in going_back:
        assert all(result.equal == result.elements for result in call.results), call
