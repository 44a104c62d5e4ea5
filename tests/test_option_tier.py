"""--amp-tier and the marker amp_long."""

from __future__ import annotations

import pytest

from tests.project import Project, ids, refused, summary

TEST = """
import pytest


def test_short(amp):
    pass


@pytest.mark.amp_long
def test_long(amp):
    pass


@pytest.mark.amp_long
class TestLong:
    def test_in_class(self, amp):
        pass


def test_plain():
    pass
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ["test_short", "test_plain"]),
        (("--amp-tier=ordinary",), ["test_short", "test_plain"]),
        (("--amp-tier=long",), ["test_long", "test_in_class", "test_plain"]),
        (("--amp-tier=all",), ["test_short", "test_long", "test_in_class", "test_plain"]),
    ],
)
def test_option_selects_tests_by_tier(project: Project, arguments: tuple[str, ...], expected: list[str]) -> None:
    project.write(test_it=TEST)
    result = project.here("--collect-only", "-q", "--amp-device=cpu", "--amp-dtype=bf16", *arguments)
    names = [line.partition("[")[0].rpartition("::")[2] for line in result.outlines if "::" in line]
    assert sorted(names) == sorted(expected)
    assert len(ids(result)) == len(expected)


def test_tests_of_other_tiers_are_counted(project: Project) -> None:
    project.write(test_it=TEST)
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16")
    result.assert_outcomes(passed=2, deselected=2)
    assert "not run   2 (long tier (--amp-tier=long))" in summary(result)
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16", "--amp-tier=long")
    result.assert_outcomes(passed=3, deselected=1)
    assert "not run   1 (ordinary tier (--amp-tier=ordinary))" in summary(result)


def test_long_test_without_fixtures_needs_the_long_tier(project: Project) -> None:
    project.write(test_it="import pytest\n\n\n@pytest.mark.amp_long\ndef test_plain():\n    pass")
    assert project.here().ret == pytest.ExitCode.NO_TESTS_COLLECTED
    project.here("--amp-tier=long").assert_outcomes(passed=1)


def test_deselected_tests_of_other_tiers_are_not_counted(project: Project) -> None:
    project.write(test_it=TEST)
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16", "-k", "test_short")
    assert not [line for line in summary(result) if line.startswith("not run")]


@pytest.mark.parametrize("value", ["nope", "", "LONG", "ordinary,long"])
def test_bad_value_is_refused(project: Project, value: str) -> None:
    line = refused(project.here(f"--amp-tier={value}"))
    assert line == f"--amp-tier (command line): {value!r} is not a tier; expected ordinary, long, all"
