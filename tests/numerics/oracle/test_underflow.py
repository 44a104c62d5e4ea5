"""Results below the smallest normal float32, which kernels flush to zero, are not a rounding of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as f

from pytest_amp.numerics.oracle import verdict
from tests.numerics.oracle.test_sums import observed
from tests.numerics.planted import kernel

#: About the square root of float32's smallest normal number: products of two such values underflow.
SMALL = 1e-19


def values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def low_product() -> None:
    torch.mm((values(32, 64) * SMALL).bfloat16(), (values(64, 32) * SMALL).bfloat16())


def float32_product() -> None:
    torch.bmm(values(2, 16, 32) * SMALL, values(2, 32, 16) * SMALL)


def norm() -> None:
    x = (values(8, 32) * 1e-8).requires_grad_()
    result = f.layer_norm(x, (32,), torch.ones(32, requires_grad=True), torch.zeros(32, requires_grad=True), 1e-6)
    result.backward(values(8, 32) * 1e-37)  # type: ignore[no-untyped-call]  # torch's


@pytest.mark.parametrize("step", [low_product, float32_product, norm])
def test_results_that_underflow_follow_their_models(step: Callable[[], None]) -> None:
    assert not verdict.faults(observed(step, torch.bfloat16), torch.bfloat16)


def test_small_result_that_does_not_underflow_is_compared() -> None:
    def summed_low(_original: Callable[..., Any], args: tuple[torch.Tensor, ...], _kwargs: dict[str, Any]) -> Any:
        left, right = args
        result = torch.zeros(left.shape[0], right.shape[1], dtype=left.dtype)
        for column in range(left.shape[1]):
            result = result + left[:, column, None] * right[None, column]
        return result

    def step() -> None:
        torch.mm((values(32, 64) * 1e-12).bfloat16(), (values(64, 32) * 1e-12).bfloat16())

    with kernel("mm", summed_low):
        assert verdict.faults(observed(step, torch.bfloat16), torch.bfloat16)
