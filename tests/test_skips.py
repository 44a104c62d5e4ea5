"""Skips by the package in a test of the package are red: the test would otherwise be green (tests/conftest.py)."""

from __future__ import annotations

from tests.project import Project

TEST = """
import pytest
from pytest_amp.child_process import ExaminationFailed
from tests.speed.simulated import check_simulated

def test_expects_a_failure(request):
    with pytest.raises(ExaminationFailed):
        check_simulated(request, mode="off")

def test_skips_itself():
    pytest.skip("no GPU")
"""


def test_skip_raised_by_the_package_is_red(project: Project) -> None:
    project.write(conftest="from tests.conftest import pytest_runtest_makereport", test_it=TEST)
    result = project.here("-rs")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["skipped by the package itself: Skipped: speed is off: by request"])
