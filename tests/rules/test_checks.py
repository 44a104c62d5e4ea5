"""Checks of an operator: comparisons beyond its calls, and messages if there is nothing to compare."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from pytest_amp.devices import find_device
from pytest_amp.rules import checks, observe
from pytest_amp.rules.checks import Checked, follow
from pytest_amp.rules.observed import UNOBSERVED
from pytest_amp.rules.samples import Sample
from pytest_amp.rules.spec import Rule, RuleName

CPU = find_device("cpu")
LOW = torch.bfloat16
NAME = "pytest_amp_checked::op"
Kernel = Callable[[torch.Tensor], Any]
Defined = Callable[..., None]


@pytest.fixture
def define(monkeypatch: pytest.MonkeyPatch) -> Iterator[Defined]:
    """Define an operator of one tensor with a kernel, one sample, and no rule."""
    make: Any = torch.library.Library
    library = make("pytest_amp_checked", "DEF")

    def with_kernel(kernel: Kernel, *, returns: str = "Tensor", sample: Sample | None = None) -> None:
        library.define(f"op(Tensor x) -> {returns}")
        library.impl("op", kernel, "CPU")
        result = [sample or Sample((torch.linspace(1, 2, 3),))]
        for module in (checks, observe):
            monkeypatch.setattr(module, "samples", lambda _: result)
        monkeypatch.setattr(checks, "further_samples", lambda _: [])
        monkeypatch.setattr(checks, "unusual", lambda *_: [])

    yield with_kernel
    library._destroy()


def followed() -> Checked:
    return follow("hand_cast", NAME, CPU, LOW, rule=Rule(RuleName.NONE, "nobody"))


def sequence(*results: Callable[[torch.Tensor], Any]) -> Kernel:
    """Return a kernel that cycles through ``results``: the checks compare the second pair of calls of each dtype."""
    upcoming = itertools.cycle(results)

    def kernel(x: torch.Tensor) -> Any:
        return next(upcoming)(x)

    return kernel


def test_undefined_result_is_not_compared(define: Defined) -> None:
    kernel = sequence(
        lambda x: (x * 1, x + 1), lambda x: (x * 1, x + 2), lambda x: (x * 1, x + 3), lambda x: (x * 1, x + 4)
    )
    define(kernel, returns="(Tensor, Tensor)", sample=Sample((torch.ones(3),), undefined=(1,)))
    assert followed().failures == ()


def test_result_with_different_bits_is_named_by_its_index(define: Defined) -> None:
    kernel = sequence(
        lambda x: (x * 1, x + 1), lambda x: (x * 1, x + 1), lambda x: (x * 1, x + 3), lambda x: (x * 1, x + 4)
    )
    define(kernel, returns="(Tensor, Tensor)", sample=Sample((torch.ones(3),), undefined=(0,)))
    assert followed().failures[0] == "float32: result 1 differs from that of manual casts in 3 of 3 values"


def test_result_missing_in_one_of_two_calls_is_reported(define: Defined) -> None:
    def fails(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not today")

    define(sequence(torch.clone, torch.clone, fails, torch.clone))
    assert followed().failures[0].startswith("float32: gives 'RuntimeError', with manual casts {0: tensor(")


def test_results_at_different_indices_are_reported(define: Defined, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a back end that omits one of several results if gradients are off."""
    define(torch.clone)
    results = iter([{0: torch.ones(1)}, {0: torch.ones(1), 2: torch.ones(1)}] * 9)
    monkeypatch.setattr(checks, "_results", lambda _: next(results))
    assert followed().failures[0] == "float32: gives tensors at [0], with manual casts at [0, 2]"


def test_kernel_missing_for_one_dtype_leaves_the_others_checked(define: Defined) -> None:
    def only_float32(x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32:
            raise RuntimeError("could not create a primitive descriptor")
        return x.clone()

    define(only_float32)
    actual = followed()
    assert actual.ran == ("float32",)
    assert len(actual.refused) >= 2
    assert (actual.failures, actual.cannot) == ((), None)


def test_kernel_missing_for_all_dtypes_is_reported_with_its_error(define: Defined) -> None:
    def nothing(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("op: ATen not compiled with some library\nsecond line")

    define(nothing)
    actual = followed()
    assert (actual.ran, actual.failures) == ((), ())
    assert actual.cannot == "op: ATen not compiled with some library"


def test_rule_of_one_argument_is_unobserved_if_a_call_failed(define: Defined) -> None:
    def no_halves(x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32:
            raise RuntimeError("halves are not implemented")
        return x.clone()

    define(no_halves)
    actual = observe.observe(NAME, CPU, LOW)
    assert (actual.rule, actual.reason) == (UNOBSERVED, "fits promote, none: halves are not implemented")


def test_rule_of_one_argument_is_none_without_a_failure(define: Defined) -> None:
    define(torch.clone)
    assert observe.observe(NAME, CPU, LOW).rule == "none"
