"""``amp.record``: values of a user's own, compared with those of a baseline."""

from __future__ import annotations

import pytest

from tests.project import ON_CPU, Project, red, summary

TEST = "def test_it(amp):\n    amp.record('x', {value}, {given})\n"


def recorded(project: Project, value: str, keywords: str = "") -> None:
    project.write(test_it=TEST.format(value=value, given=keywords))
    assert project.here(*ON_CPU, "--amp-record=old.json").ret == 0


def test_record_writes_value_and_keywords(project: Project) -> None:
    recorded(project, "1.5", "unit='ms', better='lower', interval=(1.4, 1.7), margin=0.1")
    (data,) = project.observations("old.json")
    assert data == {
        "key": "project/cpu/bf16/x",
        "kind": "measure",
        "value": 1.5,
        "unit": "ms",
        "interval": [1.4, 1.7],
        "better": "lower",
        "margin": 0.1,
        "test": "test_it::test_it",
    }


@pytest.mark.parametrize(
    ("before", "now", "keywords", "says"),
    [
        ("100", "104", "better='lower'", None),
        ("100", "106", "better='lower', unit='MB'", "worse than"),
        ("100", "90", "better='lower'", None),
        ("100", "90", "better='higher'", "worse than"),
        ("100", "90", "better='higher', margin=0.2", None),
        ("100", "90", "better='higher', interval=(80, 110)", None),
        ("[1, 'a']", "[1, 'a']", "", None),
        ("[1, 'a']", "[1, 'b']", "", "no longer"),
        ("1", "1.0", "", "no longer"),
    ],
)
def test_value_is_compared_with_the_baseline(
    project: Project, before: str, now: str, keywords: str, says: str | None
) -> None:
    recorded(project, before, keywords)
    project.write(test_it=TEST.format(value=now, given=keywords))
    result = project.here(*ON_CPU, "--amp-baseline=old.json")
    assert result.ret == (0 if says is None else 1)
    if says is not None:
        result.stdout.fnmatch_lines([f"*AmpFailure: x on cpu-bf16 is {says} what the baseline has"])


def test_worse_number_is_reported_with_its_change(project: Project) -> None:
    recorded(project, "100.0", "better='higher', unit='1/s'")
    project.write(test_it=TEST.format(value="90.0", given="better='higher', unit='1/s'"))
    result = project.here(*ON_CPU, "--amp-baseline=old.json")
    result.stdout.fnmatch_lines(
        ["  baseline  100.0 1/s on torch *", "  now       90.0 1/s (10 % less; allowed 5 %) on torch *"]
    )


def test_wide_intervals_are_inconclusive_and_red_under_strict(project: Project) -> None:
    recorded(project, "100", "better='higher', interval=(80, 120)")
    project.write(test_it=TEST.format(value="101", given="better='higher', interval=(80, 121)"))
    assert project.here(*ON_CPU, "--amp-baseline=old.json").ret == 0
    result = project.here(*ON_CPU, "--amp-baseline=old.json", "--amp-strict")
    assert red(result) == ["inconclusive: project/cpu/bf16/x"]
    assert "inconclusive project/cpu/bf16/x: 100 -> 101 [80, 121]" in summary(result)


@pytest.mark.parametrize(
    ("value", "keywords", "says"),
    [
        ("1", "better='smaller'", "better='smaller'; expected lower, higher, same"),
        ("'a'", "better='lower'", "x: 'a' is not a finite number, which better='lower' compares"),
        ("float('nan')", "better='lower'", "x: nan is not a finite number, which better='lower' compares"),
        ("True", "better='higher'", "x: True is not a finite number, which better='higher' compares"),
        ("1", "interval=(0, 2)", "x: interval=(0, 2); expected two numbers with 1 between them, and a direction"),
        ("1", "better='lower', interval=(2, 3)", "x: interval=(2, 3); expected two numbers with 1 between them"),
        ("1", "better='lower', interval=3", "x: interval=3; expected two numbers with 1 between them"),
        ("1", "better='lower', margin=-1", "x: margin=-1; expected a number from 0"),
        ("1", "margin=0.1", "x: margin=0.1; expected a number from 0"),
        ("object()", "", "project/cpu/bf16/x: a object is not plain JSON"),
    ],
)
def test_invalid_value_is_refused_at_the_tests_own_line(project: Project, value: str, keywords: str, says: str) -> None:
    project.write(test_it=TEST.format(value=value, given=keywords))
    result = project.here(*ON_CPU)
    assert result.ret == 1
    assert any(says in line for line in result.outlines), result.outlines
    assert not any("pytest_amp/amp" in line for line in result.outlines)


def test_values_of_another_seed_are_inconclusive(project: Project) -> None:
    recorded(project, "100", "better='lower'")
    project.write(test_it=TEST.format(value=200, given="better='lower'"))
    result = project.here(*ON_CPU, "--amp-baseline=old.json", "--amp-seed=3")
    assert result.ret == 0
    assert "          seed 0 before, 3 now: numbers that moved are inconclusive" in summary(result)


OVER_SEEDS = """
import torch

def test_it(amp):
    drawn = []
    def measured():
        drawn.append(torch.initial_seed())
        return {{"x": {factor} * float(torch.rand(1))}}
    errors, others = amp.over_seeds(measured)
    amp.observe("error", errors["x"], kind="error", over_seeds=others.get("x"))
    amp.observe("seeds", drawn, kind="series")
"""


def test_errors_over_seeds_are_recorded_and_compared(project: Project) -> None:
    """Detect that every seed is worse, although the errors of the seeds differ by a factor of two."""
    project.write(test_it=OVER_SEEDS.format(factor=0.01))
    assert project.here(*ON_CPU, "--amp-seed=5", "--amp-record=old.json").ret == 0
    error, seeds = project.observations("old.json")
    assert seeds["value"] == [5, 6, 7]
    assert len({error["value"], *error["over_seeds"]}) == 3
    assert project.here(*ON_CPU, "--amp-seed=5", "--amp-baseline=old.json").ret == 0
    project.write(test_it=OVER_SEEDS.format(factor=0.15))
    assert project.here(*ON_CPU, "--amp-seed=5").ret == 0
    result = project.here(*ON_CPU, "--amp-seed=5", "--amp-baseline=old.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*error on cpu-bf16 is worse than what the baseline has*", "*15 times that over 3 *"])
    project.write(test_it=OVER_SEEDS.format(factor=0.012))
    assert project.here(*ON_CPU, "--amp-seed=5", "--amp-baseline=old.json").ret == 0


def test_run_without_record_or_baseline_measures_one_seed(project: Project) -> None:
    project.write(test_it=OVER_SEEDS.format(factor=0.01) + "    assert (drawn, others) == ([0], {})\n")
    assert project.here(*ON_CPU).ret == 0
