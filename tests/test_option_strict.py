"""--amp-strict; test_option_baseline.py has the part about gone observations."""

from __future__ import annotations

import pytest

from tests.project import Project, red, refused

MIXED = """
import pytest


@pytest.mark.parametrize("decided", [True, False])
def test_it(amp, decided):
    if not decided:
        pytest.skip("inconclusive: too noisy")
"""


def test_inconclusive_check_is_red_only_under_strict(project: Project) -> None:
    project.write(test_it=MIXED)
    arguments = ("--amp-device=cpu", "--amp-dtype=bf16")
    result = project.here(*arguments)
    assert (result.ret, red(result)) == (0, [])
    result = project.here(*arguments, "--amp-strict")
    assert (result.ret, red(result)) == (1, ["project on cpu-bf16: 1 inconclusive, which --amp-strict refuses"])


def test_option_is_visible_to_tests(project: Project) -> None:
    project.write(test_it="def test_it(amp):\n    assert amp.config.strict is True")
    project.here("--amp-device=cpu", "--amp-strict").assert_outcomes(passed=2)
    project.here("--amp-device=cpu").assert_outcomes(failed=2)


@pytest.mark.parametrize("value", ["true", "TRUE"])
def test_ini_key_turns_the_option_on(project: Project, value: str) -> None:
    project.file("pytest.ini", f"[pytest]\namp_strict = {value}\n")
    project.write(test_it="def test_it(amp):\n    assert amp.config.strict is True")
    project.here("--amp-device=cpu").assert_outcomes(passed=2)


def test_bad_value_in_ini_is_refused(project: Project) -> None:
    project.file("pytest.ini", "[pytest]\namp_strict = maybe\n")
    assert refused(project.here()) == "amp_strict (pytest.ini): 'maybe' is not a truth value; expected true, false"
