"""Errors over seeds: those of a run with the next seed are those that the next run observes."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_amp.cases import Case, mlp
from pytest_amp.devices import Device, find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.gradients import check_gradients
from pytest_amp.numerics.spread import other_draws, over_seeds, worst_share
from pytest_amp.numerics.step import Step, run_step
from pytest_amp.precision import BF16, FP16, Precision
from pytest_amp.record import Kind, Observation, Verdict, compare
from tests.numerics.planted import Replacement, broken
from tests.observing import Noted

CPU = find_device("cpu")


def observed(precision: Precision, *, seed: int = 0, draws: int = 3, device: Device = CPU) -> dict[str, Observation]:
    """Return the errors that the check of an MLP observes, by name, whether it passes or not."""
    observed = Noted()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with contextlib.suppress(AmpFailure):
            check_gradients(mlp(), Conditions(device, precision, seed, draws=draws), observed.observe)
    finally:
        torch.set_num_threads(threads)
    return {
        name: Observation(f"gradients/cpu/{precision.name}/{name}", value=value, **{**facts, "kind": Kind.ERROR})
        for name, value in observed.items()
        if (facts := observed.facts[name])["kind"] == "error"
    }


def test_errors_over_seeds_match_runs_with_those_seeds() -> None:
    for precision in (BF16, FP16):
        first = observed(precision)
        for number in (0, 1):
            next_seed = observed(precision, seed=number + 1, draws=1)
            assert {other.over_seeds for other in next_seed.values()} == {None}
            # The allowed distance from float32 is a different error for other values, and the summary is a share of it.
            names = [name for name in first if not name.endswith("summary.fp32")]
            assert len(names) > 5
            for name in names:
                spread = first[name].over_seeds
                assert spread is not None
                assert spread[number] == next_seed[name].value, name


def test_case_that_fails_with_other_seeds_has_no_spread() -> None:
    def step(seed: int) -> object:
        raise AmpFailure(f"no step with {seed}")

    case = Case("one", lambda: torch.nn.Linear(2, 2), lambda: torch.ones(1, 2), lambda m, x: m(x).sum())
    assert other_draws(case, Conditions(CPU, BF16, draws=3), step) == []  # type: ignore[arg-type]  # it only raises
    assert over_seeds([]) is None


def test_runs_of_a_seed_draw_the_same_numbers() -> None:
    """Include a dropout's mask: with a different one an error is of the size of the tensor."""
    case = Case(
        "dropout",
        lambda: torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 4)),
        lambda: torch.randn(16, 8),
        lambda m, x: m(x).float().square().mean(),
    )
    where = Conditions(CPU, BF16, draws=3)

    def step(seed: int) -> Step:
        return run_step(case, case.realise(seed=seed).on("cpu"), where.region, seed=seed)

    draws = other_draws(case, where, step)
    assert len(draws) == 2
    for errors in (errors for draw in draws for errors in draw):
        assert 1e-5 < max(errors.values()) < 0.05


def test_missing_or_infinite_error_of_a_seed_has_no_spread() -> None:
    assert over_seeds([0.1, 0.2]) == (0.1, 0.2)
    assert over_seeds([0.1, None]) is None
    assert over_seeds([0.1, float("inf")]) is None


Function = Callable[..., Tensor]


def added_up_low(linear: Function, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Tensor:
    """Round the sum of the parts of a product after each of them."""
    x, weight, bias = args
    parts = zip(x.split(4, -1), weight.split(4, -1), strict=True)
    return sum((linear(a, b) for a, b in parts), start=bias.to(torch.get_autocast_dtype("cpu")))


def cast_twice(linear: Function, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Tensor:
    """Round input and weight twice more before the product: 1.3 to 1.4 of the error, below a fixed 1.5 times."""
    x, weight, bias = args
    low = torch.get_autocast_dtype("cpu")
    return linear(x.to(low) * 1.3 / 1.3, weight.to(low) * 1.3 / 1.3, bias)


def in_another_order(linear: Function, args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Tensor:
    """Add the terms of each float32 sum from the last to the first."""
    x, weight, bias = args
    return linear(x.flip(-1), weight.flip(-1), bias)


@pytest.mark.parametrize("precision", [BF16, FP16], ids=lambda precision: precision.name)
@pytest.mark.parametrize(
    ("change", "errors"),
    [(added_up_low, True), (cast_twice, True), (in_another_order, False)],
    ids=lambda value: getattr(value, "__name__", "worse" if value else "same"),
)
def test_loss_of_precision_regresses_and_another_order_does_not(
    precision: Precision, change: Replacement, *, errors: bool
) -> None:
    before, now = observed(precision), observed(precision, device=broken("linear", change))
    assert before.keys() == now.keys()
    verdicts = {name: compare(now[name], before[name]).verdict for name in now}
    worse = [name for name, verdict in verdicts.items() if verdict is Verdict.REGRESSED]
    assert len(worse) >= 4 if errors else worse == []
    assert Verdict.IMPROVED not in verdicts.values() or errors


def test_share_of_float32_is_stable_when_the_worst_tensor_changes() -> None:
    """The worse of two similar tensors, and its error, may differ from run to run."""
    allowed = {"loss": 0.15, "input": 0.005}
    one = worst_share({"loss": 0.0990, "input": 0.0032}, allowed)
    other = worst_share({"loss": 0.0990, "input": 0.0034}, allowed)
    assert one == pytest.approx(0.66)
    assert other == pytest.approx(0.68)
    assert worst_share({"loss": 0.01}, allowed) == math.inf
