"""The soak: its definitions of a flake and a leak."""

from __future__ import annotations

from tools.soak import ALLOWED, Usage, problems

STEADY = [Usage(500.0, 1, 10)] * 5
FACTS: list[dict[str, object]] = [{"a": 1, "b": "x"}] * 5


def test_equal_runs_have_no_problem() -> None:
    assert problems([0] * 5, FACTS, STEADY) == []


def test_red_run_is_reported() -> None:
    assert problems([0, 1, 0, 0, 0], FACTS, STEADY) == ["run 2: pytest ended with 1"]


def test_flaky_fact_is_reported() -> None:
    flaky = [*FACTS[:4], {"a": 1, "b": "y"}]
    assert problems([0] * 5, flaky, STEADY) == ["run 5: 1 facts differ from the first, b"]
    assert problems([0, 0], [{"a": 1}, {}], STEADY[:2]) == ["run 2: 1 facts differ from the first, a"]


def test_leaks_are_reported() -> None:
    growing = [Usage(500.0 + (ALLOWED + 1) * run, 1 + run, 10 + run) for run in range(5)]
    actual = problems([0] * 5, FACTS, growing)
    assert actual == [
        f"memory grows by {ALLOWED + 1:.1f} MB a run",
        "threads: 3 after 3 runs, 5 after 5",
        "files: 12 after 3 runs, 14 after 5",
    ]


def test_growth_in_the_first_runs_is_no_leak() -> None:
    filled = [Usage(100.0, 1, 10), Usage(900.0, 8, 30), *[Usage(1000.0, 8, 30)] * 3]
    assert problems([0] * 5, FACTS, filled) == []
