"""BatchNorm's backward pass follows its model whatever the formats of its input and of its incoming gradient."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from pytest_amp.numerics.oracle import verdict
from tests.numerics.oracle.test_sums import DTYPES, observed

FORMATS = {
    "contiguous": lambda x: x.contiguous(),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "turned": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
}


def values(seed: int) -> Tensor:
    return torch.randn(4, 16, 6, 6, generator=torch.Generator().manual_seed(seed))


@DTYPES
@pytest.mark.parametrize("pair", [*itertools.product(FORMATS, FORMATS)], ids=" and ".join)
def test_gradients_in_any_format_follow_their_models(pair: tuple[str, str], dtype: torch.dtype) -> None:
    x, grad = (FORMATS[name](values(seed).to(dtype)) for seed, name in enumerate(pair))
    x.requires_grad_()
    norm = nn.BatchNorm2d(16)

    def step() -> None:
        norm(x).backward(grad)

    calls = observed(step, dtype)
    assert "aten::native_batch_norm_backward" in {call.operator for call in calls}
    assert not verdict.faults(calls, dtype)


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
    x.requires_grad_()
    norm = nn.BatchNorm2d(16)

    def step() -> None:
        norm(x).backward(grad)

    calls = observed(step, dtype)
    assert "aten::native_batch_norm_backward" in {call.operator for call in calls}
    assert not verdict.faults(calls, dtype)
