"""--amp-tolerance-scale."""

from __future__ import annotations

import pytest

from tests.project import Project, refused


def test_option_is_visible_to_tests_and_recorded(project: Project) -> None:
    project.write(test_it="def test_it(amp):\n    assert amp.config.tolerance_scale == 0.25")
    result = project.here("--amp-device=cpu", "--amp-tolerance-scale=0.25", "--amp-record=new.json")
    result.assert_outcomes(passed=2)
    assert project.record("new.json")["provenance"]["tolerance_scale"] == 0.25
    result.stdout.fnmatch_lines(["amp: *, tolerance_scale 0.25 (command line)*"])


@pytest.mark.parametrize(("text", "number"), [("2", 2.0), ("+.5", 0.5), ("1.", 1.0), ("25e-2", 0.25), ("1E1", 10.0)])
def test_notations_of_a_number_are_accepted(project: Project, text: str, number: float) -> None:
    project.write(test_it=f"def test_it(amp):\n    assert amp.config.tolerance_scale == {number}")
    project.here("--amp-device=cpu", f"--amp-tolerance-scale={text}").assert_outcomes(passed=2)


def test_default_is_one(project: Project) -> None:
    project.write(test_it="def test_it(amp):\n    assert amp.config.tolerance_scale == 1.0")
    project.here("--amp-device=cpu").assert_outcomes(passed=2)


#: Digits that Python's own float accepts: FULLWIDTH DIGIT ONE, ARABIC-INDIC DIGIT TWO.
OTHER_DIGITS = ("\uff11", "\u0662")


@pytest.mark.parametrize(
    "value", ["0", "-1", "nan", "inf", "-inf", "one", "", "1e-999", "1,5", "1_0", " 1", "1 ", *OTHER_DIGITS]
)
def test_bad_value_is_refused(project: Project, value: str) -> None:
    line = refused(project.here(f"--amp-tolerance-scale={value}"))
    assert line.startswith(f"--amp-tolerance-scale (command line): {value!r} is not a number above 0; expected ")
