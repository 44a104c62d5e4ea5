"""Errors over seeds: those of a run with the next seed are those that the next run observes."""

from __future__ import annotations

import torch

from pytest_amp.cases import Case, mlp
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.numerics import Conditions
from pytest_amp.numerics.gradients import check
from pytest_amp.numerics.spread import other_draws, over_seeds
from pytest_amp.precision import BF16, FP16, Precision

CPU = find_device("cpu")


def observed(precision: Precision, *, seed: int, draws: int) -> dict[str, tuple[float, tuple[float, ...] | None]]:
    """Each error, and what it is over seeds."""
    found: dict[str, tuple[float, tuple[float, ...] | None]] = {}

    def observe(
        name: str,
        value: float,
        kind: str,
        _unit: str | None,
        _allowed: float | None,
        others: tuple[float, ...] | None = None,
    ) -> None:
        if kind == "error":
            found[name] = (value, others)

    check(mlp(), Conditions(CPU, precision, seed, draws=draws), observe)
    return found


def test_the_errors_of_the_next_seeds() -> None:
    for precision in (BF16, FP16):
        first = observed(precision, seed=0, draws=3)
        for number in (0, 1):
            others = observed(precision, seed=number + 1, draws=1)
            assert {each for _, each in others.values()} == {None}
            # Which tensor is worst beside float32 is another one with other numbers.
            names = [name for name in first if not name.endswith("summary.fp32")]
            assert len(names) > 5
            for name in names:
                spread = first[name][1]
                assert spread is not None
                assert spread[number] == others[name][0], name


def test_a_case_that_does_not_run_with_other_numbers_has_no_spread() -> None:
    def step(seed: int) -> object:
        raise AmpFailure(f"no step with {seed}")

    case = Case("one", lambda: torch.nn.Linear(2, 2), lambda: torch.ones(1, 2), lambda m, x: m(x).sum())
    assert other_draws(case, Conditions(CPU, BF16, draws=3), step) == []  # type: ignore[arg-type]  # it only raises
    assert over_seeds([]) is None


def test_an_error_that_some_numbers_do_not_have_has_no_spread() -> None:
    assert over_seeds([0.1, 0.2]) == (0.1, 0.2)
    assert over_seeds([0.1, None]) is None
    assert over_seeds([0.1, float("inf")]) is None
