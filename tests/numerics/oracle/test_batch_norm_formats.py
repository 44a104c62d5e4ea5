"""BatchNorm's backward pass follows its model whatever the formats of its input and of its incoming gradient."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_amp.numerics.errors import all_in
from pytest_amp.numerics.oracle import verdict
from tests.numerics.oracle.test_sums import DTYPES, observed
from tests.numerics.planted import kernel

FORMATS = {
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "turned": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
}


def values(seed: int, channels: int = 16) -> Tensor:
    return torch.randn(4, channels, 6, 6, generator=torch.Generator().manual_seed(seed))


def expect_gradients_of_the_models(x: Tensor, grad: Tensor) -> None:
    norm = nn.BatchNorm2d(16)
    x.requires_grad_()
    calls = observed(lambda: norm(x).backward(grad), x.dtype)
    assert "aten::native_batch_norm_backward" in {call.operator for call in calls}
    assert not verdict.faults(calls, x.dtype)


@DTYPES
@pytest.mark.parametrize("pair", [*itertools.product(FORMATS, FORMATS)], ids=" and ".join)
def test_gradients_in_any_format_follow_their_models(pair: tuple[str, str], dtype: torch.dtype) -> None:
    x, grad = (FORMATS[name](values(seed).to(dtype)) for seed, name in enumerate(pair))
    expect_gradients_of_the_models(x, grad)


def test_gradient_of_many_biases_is_a_low_sum_for_different_formats() -> None:
    """The kernel's sum of the gradients is a bf16 tensor (an fp16 one is not); 128 values are enough to see that."""
    dtype = torch.bfloat16
    x, grad = (FORMATS[name](values(seed, 128).to(dtype)) for seed, name in enumerate(("contiguous", "channels last")))
    x.requires_grad_()
    norm = nn.BatchNorm2d(128)
    calls = observed(lambda: norm(x).backward(grad), dtype)
    assert norm.bias.grad is not None
    assert all_in(norm.bias.grad, dtype)
    assert not verdict.faults(calls, dtype)


@DTYPES
def test_low_sum_of_bias_gradients_in_one_format_is_a_fault(dtype: torch.dtype) -> None:
    def low_sum(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        *gradients, total = original(*args, **kwargs)
        return (*gradients, total.to(dtype).float() if total.dtype == torch.float32 else total)

    x, grad = (values(seed, 128).to(dtype) for seed in range(2))
    x.requires_grad_()
    norm = nn.BatchNorm2d(128)
    with kernel("native_batch_norm_backward", low_sum):
        calls = observed(lambda: norm(x).backward(grad), dtype)
    assert [fault.operator for fault in verdict.faults(calls, dtype)] == ["native_batch_norm_backward"]


@DTYPES
@pytest.mark.parametrize("pair", [*itertools.product(("rows", "one pixel"), repeat=2)], ids=" and ".join)
def test_gradients_of_one_pixel_follow_their_models(pair: tuple[str, str], dtype: torch.dtype) -> None:
    """Both are dense in either format; torch takes the strides of ``one pixel`` for channels-last."""
    strides = {"rows": (16, 1, 1, 1), "one pixel": (16, 1, 16, 16)}
    x, grad = (
        torch.empty_strided((64, 16, 1, 1), strides[name], dtype=dtype).copy_(
            torch.randn(64, 16, 1, 1, generator=torch.Generator().manual_seed(seed))
        )
        for seed, name in enumerate(pair)
    )
    expect_gradients_of_the_models(x, grad)
