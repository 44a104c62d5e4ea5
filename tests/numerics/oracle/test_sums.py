"""Long float32 sums: a large error of equal terms is no low precision, and low-precision kernels are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from pytest_amp.numerics.oracle import verdict
from pytest_amp.numerics.oracle.observer import ObservedCall, Observer
from pytest_amp.numerics.oracle.sums import (
    certain,
    most_of_float32,
    other_numbers,
    probable,
    roundoff,
)
from pytest_amp.precision import FP32
from tests.numerics.planted import kernel

ROWS = 8192

DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])


def observed(step: Callable[[], object], dtype: torch.dtype) -> list[ObservedCall]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    observer = Observer("cpu", dtype)
    try:
        with observer.on({}):
            step()
    finally:
        torch.set_num_threads(threads)
    return observer.observed_calls


def norm_and_mean() -> None:
    """Run a norm and a mean: each row gives the bias the same gradient."""
    x = torch.arange(ROWS * 16.0).sin().view(ROWS, 16)
    weight, bias = torch.ones(16, requires_grad=True), torch.zeros(16, requires_grad=True)
    torch.autograd.backward((0.1 * f.layer_norm(x, (16,), weight, bias)).mean())


def one_token() -> None:
    weight = torch.linspace(-1, 1, 32).view(4, 8).requires_grad_()
    torch.autograd.backward((0.1 * f.embedding(torch.ones(ROWS, dtype=torch.int64), weight)).mean())


def one_row() -> None:
    torch.zeros(3, 8).index_add(0, torch.ones(ROWS, dtype=torch.int64), torch.full((ROWS, 8), 0.1))


def product() -> None:
    torch.mm(torch.full((8, ROWS), 0.1), torch.full((ROWS, 4), 0.3))


def smoothed() -> None:
    """Run a smoothed loss with probabilities near one, too: the error of the gradients' sum is one gradient's."""
    likely = f.one_hot(torch.arange(4), 32000) * 20
    logits = (torch.arange(4 * 32000.0).sin().view(4, 32000) + likely).requires_grad_()
    torch.autograd.backward(f.cross_entropy(logits, torch.arange(4), label_smoothing=0.1))


STEPS = {"layer_norm": norm_and_mean, "embedding": one_token, "index_add": one_row, "mm": product, "loss": smoothed}


@DTYPES
@pytest.mark.parametrize("name", STEPS)
def test_long_float32_sum_of_equal_terms_is_no_fault(name: str, dtype: torch.dtype) -> None:
    assert not verdict.faults(observed(STEPS[name], dtype), dtype)


def test_roundings_of_equal_terms_exceed_those_of_a_short_sum() -> None:
    """Verify the premise of this file. A sum alone has 3/8 of a rounding for each term."""
    worst = {
        name: max(result.error for observed in observed(step, torch.float16) for result in observed.results)
        for name, step in STEPS.items()
    }
    # On a CPU with AVX512-FP16 the library of the product adds its terms in blocks, with a hundredth of this error.
    assert min(error for name, error in worst.items() if name != "mm") > most_of_float32(torch.float16)
    del worst["loss"]  # one gradient and the sum of all nearly cancel
    assert max(worst.values()) < certain(ROWS) * 3 / 8


Change = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def low_terms(dtype: torch.dtype) -> Change:
    """Round the real arguments of a kernel first."""

    def change(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        wide = [x.dtype == torch.float32 if isinstance(x, Tensor) else False for x in args]
        return original(*(x.to(dtype).to(x.dtype) if real else x for x, real in zip(args, wide, strict=True)), **kwargs)

    return change


def low_sums(dtype: torch.dtype) -> Change:
    """Round the partial sums of a product, of 1024 terms each."""

    def change(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        a, b = args
        if a.dtype != torch.float32:
            return original(*args, **kwargs)
        total = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
        for left, right in zip(a.split(1024, 1), b.split(1024), strict=True):
            total = (total + original(left.contiguous(), right.contiguous(), **kwargs)).to(dtype).to(a.dtype)
        return total

    return change


@DTYPES
def test_long_product_with_low_sums_is_a_fault(dtype: torch.dtype) -> None:
    with kernel("mm", low_sums(dtype)):
        observer = observed(product, dtype)
    (fault,) = verdict.faults(observer, dtype)
    assert fault.operator == "mm"


def test_long_sum_of_low_terms_is_a_fault() -> None:
    """Equal terms show it by their own error, beyond any order of float32; other terms by a cancelled mean."""
    with kernel("mm", low_terms(torch.bfloat16)):
        equal = observed(product, torch.bfloat16)
        other = observed(
            lambda: torch.mm(torch.linspace(1, 2, 8 * 512).view(8, 512), torch.linspace(1, 3, 2048).view(512, 4)),
            torch.bfloat16,
        )
    assert [fault.operator for fault in verdict.faults(equal, torch.bfloat16)] == ["mm"]
    assert [fault.operator for fault in verdict.faults(other, torch.bfloat16)] == ["mm"]


def test_float32_sum_bounds_match_their_derivation() -> None:
    """Expect one roundoff for each term, and between the formats 256 float32 roundings in bf16 and 90 in fp16."""
    assert [certain(terms) / FP32.u for terms in (1, 3, ROWS)] == [1, 3, ROWS]
    assert most_of_float32(torch.bfloat16) / FP32.u == 256
    assert round(most_of_float32(torch.float16) / FP32.u, 1) == 90.5


@DTYPES
def test_bound_for_other_numbers_lies_between_float32_and_a_rounding(dtype: torch.dtype) -> None:
    """At least twice as far from one as from the other: sums of 131072 terms, 0.289 u for a low rounding."""
    bound = max(most_of_float32(dtype), probable(131072))
    assert bound > 2 * 0.25 * 131072**0.5 * FP32.u
    assert bound < 0.289 * roundoff(dtype) / 2


def test_other_numbers_keep_zeros_signs_and_layout() -> None:
    x = torch.linspace(-1, 1, 11).outer(torch.ones(3)).t()
    state = torch.get_rng_state()
    result = other_numbers(x, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), state)
    assert result.stride() == x.stride()
    assert torch.equal(result.sign(), x.sign())
    assert ((result / x).nan_to_num(1.0) - 1).abs().max() <= 0.25
    assert len(set(result[0].tolist())) == 11
