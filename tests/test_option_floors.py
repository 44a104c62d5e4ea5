"""--amp-floors: the required speedups of a card, from a file that ``pytest-amp calibrate`` wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp.floors import Row, dumps
from tests.project import SIMULATED, Project, refused
from tests.speed.test_check_speedup import TEST, run, speedy

__all__ = ["speedy"]

CALIBRATED = TEST.replace("floor=1.2, ", "")


def row(floor: float, *, work: str = "work") -> Row:
    return Row("simulated", "fp32", "bf16", work, "step", floor, 1.9, 0.001, 3, "2.13", "-", "-", "-", "2026-11-28")


def test_speedup_below_its_calibrated_floor_is_red(speedy: Project) -> None:
    """1.5 times as fast as float32 is below the known speedup of this card."""
    speedy.write(conftest=SIMULATED, test_it=CALIBRATED)
    speedy.file("floors.json", dumps([row(1.7)]))
    run(speedy).assert_outcomes(passed=1)
    result = run(speedy, "--amp-floors=floors.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "amp: torch *, floors 1 floor (command line)",
            "  floor     1.7 times, with a margin of 3.0%",
            "  rerun     pytest * --amp-floors=floors.json",
        ]
    )
    speedy.file("floors.json", dumps([row(1.2), row(1.7, work="another")]))
    run(speedy, "--amp-floors=floors.json").assert_outcomes(passed=1)


def test_floor_argument_overrides_the_calibrated_floor(speedy: Project) -> None:
    speedy.write(conftest=SIMULATED, test_it=TEST)
    speedy.file("floors.json", dumps([row(1.7)]))
    run(speedy, "--amp-floors=floors.json").assert_outcomes(passed=1)


@pytest.mark.parametrize("text", [None, "nope", "{}", dumps([row(2.5)])])
def test_malformed_file_of_floors_is_refused(project: Project, text: str | None) -> None:
    path = Path("floors.json")
    if text is not None:
        project.file(path.name, text)
    line = refused(project.here("--amp-floors=floors.json"))
    assert line.startswith("--amp-floors (command line): ")
    assert line.endswith("; expected a file that pytest-amp calibrate wrote")
