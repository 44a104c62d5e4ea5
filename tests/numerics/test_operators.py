"""One operator at several sizes: non-finite values do not hide errors of finite ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_amp.devices import find_device
from pytest_amp.numerics import Conditions, measure_operator
from pytest_amp.precision import FP16
from tests.numerics.planted import kernel

pytestmark = pytest.mark.usefixtures("one_thread")

WHERE = Conditions(find_device("cpu"), FP16)


def _exponentials(count: int = 512) -> Tensor:
    """Return values of which two have no exponential in fp16."""
    x = torch.randn(count, generator=torch.Generator().manual_seed(0)).half()
    x[:2] = 12.0
    return x


def test_predicted_overflow_does_not_hide_other_errors() -> None:
    healthy = measure_operator("exp", torch.exp, [_exponentials()], WHERE)
    assert healthy.excess["result"] == pytest.approx(1.0, abs=0.01)

    def coarse(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = original(*args, **kwargs)
        return result * 1.01 if result.dtype == torch.float16 else result

    with kernel("exp", coarse):
        broken = measure_operator("exp", torch.exp, [_exponentials()], WHERE)
    assert broken.excess["result"] > 10


def test_unpredicted_overflow_exceeds_any_bound() -> None:
    def loses_one(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = original(*args, **kwargs)
        return result.index_fill(0, torch.tensor([7]), math.inf) if result.dtype == torch.float16 else result

    with kernel("exp", loses_one):
        broken = measure_operator("exp", torch.exp, [_exponentials()], WHERE)
    assert broken.excess["result"] == math.inf
