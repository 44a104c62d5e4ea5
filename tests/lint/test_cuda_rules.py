"""Manual arithmetic under CUDA's rules: squares and roots are float32, means of low-precision values are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.lint.cuda_rules import rules_of_cuda
from tests.lint.linted import around, case, kinds, line_of, of_case
from tests.lint.test_arithmetic import HEALTHY, PAIRS, difference_of_squares, layer_norm

BOTH = pytest.mark.parametrize("dtype", ["bf16", "fp16"])
#: Forms in which autocast computes all in float32 on CUDA: exponentials, sums, powers and norms. An exponential in
#: place is rounded, once, as a softmax that is cast back is.
RIGHT_ON_CUDA = (
    *("norm", "variance by sums", "softmax", "softmax of base two", "softmax in parts", "softmax by a norm"),
    *("weighted mean", "logsumexp", "power", "cumulative sum", "lengths", "softmax in place"),
)


@pytest.fixture(autouse=True)
def _cuda() -> Iterator[None]:
    with rules_of_cuda():
        yield


def test_rules_are_those_of_cuda() -> None:
    values = torch.ones(4, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wide = [values.square(), values.rsqrt(), values.sum(), values.exp(), values.softmax(0)]
        assert {result.dtype for result in wide} == {torch.float32}
        assert {result.dtype for result in (values.mean(), values * values)} == {torch.bfloat16}


@BOTH
@pytest.mark.parametrize("name", PAIRS)
def test_form_that_is_wrong_on_cuda_is_found(name: str, dtype: str) -> None:
    wrong, _, kind = PAIRS[name]
    assert kinds(of_case(around(wrong), dtype)) == ([] if name in RIGHT_ON_CUDA else [kind])


@BOTH
@pytest.mark.parametrize("name", PAIRS)
def test_right_form_yields_no_finding(name: str, dtype: str) -> None:
    assert of_case(around(PAIRS[name][1]), dtype) == ()


@BOTH
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_arithmetic_yields_no_finding(name: str, dtype: str) -> None:
    assert of_case(around(HEALTHY[name]), dtype) == ()


def test_low_mean_is_named_beside_a_float32_square() -> None:
    (finding,) = of_case(around(layer_norm))
    assert finding.site.endswith(f"test_arithmetic.py:{line_of(layer_norm, 1)}")
    assert "(mean and difference from the mean) are computed in bfloat16" in finding.message


def test_low_mean_in_a_difference_of_squares_is_named() -> None:
    (finding,) = of_case(around(difference_of_squares))
    assert finding.site.endswith(f"test_arithmetic.py:{line_of(difference_of_squares, 2)}")
    assert "are computed in bfloat16" in finding.message


class Convolutions(nn.Module):
    """Two convolutions with a squeeze and excitation between them, and global average pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.squeeze, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.first(x)))
        x = x * torch.sigmoid(self.squeeze(x.mean((2, 3))))[..., None, None]
        result: Tensor = self.last(functional.adaptive_avg_pool2d(x, 1).flatten(1) + x.mean((2, 3)))
        return result


def images() -> dict[str, Tensor]:
    x = torch.randn(8, 3, 10, 10)
    return {"x": x, "target": x.mean((2, 3)).argmax(1)}


@BOTH
def test_pooling_and_batch_norm_yield_no_finding(dtype: str) -> None:
    assert of_case(case(Convolutions, batch=images), dtype) == ()
