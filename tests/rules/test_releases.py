"""New and removed operators fail on a release of the spec; on a newer one they are listed, or fail if strict."""

from __future__ import annotations

import pytest
import torch
from packaging.version import Version

from tests.project import ROOT, Project

#: Plugin module that makes the spec end with LAST, and removes mm.
OLDER_SPEC = """
import re
from importlib import resources

from pytest_amp.rules import spec

text = resources.files("pytest_amp.rules").joinpath("spec.toml").read_text()
lines = [line for line in text.splitlines() if 'name = "mm"' not in line]
parsed = spec.parse_spec(re.sub('^last = .*', 'last = "LAST"', "\\n".join(lines), flags=re.MULTILINE))
spec.load_spec = lambda: parsed
"""

NOW = Version(torch.__version__)


def _run(project: Project, last: str, *arguments: str) -> pytest.RunResult:
    project.file("older_spec.py", OLDER_SPEC.replace("LAST", last))
    project.pytester.syspathinsert()
    tests = str(ROOT / "suites" / "rules" / "test_registered.py")
    which = ("-k", "no_operator or bf16-mm]", "--amp-device=cpu", "--amp-dtype=bf16", "--amp-record=seen.json")
    return project.apart("-p", "older_spec", tests, *which, *arguments)


@pytest.fixture
def before() -> str:
    """Return the release before this one."""
    return f"{NOW.major}.{NOW.minor - 1}"


def test_new_operator_is_listed_on_a_newer_release(project: Project, before: str) -> None:
    result = _run(project, before)
    assert result.ret == pytest.ExitCode.OK
    observed = project.observed("seen.json")
    assert "mm" in observed["rules/cpu/bf16/new operators"]
    assert observed["rules/cpu/bf16/aten::mm"] == "lower_precision_fp"


def test_new_operator_fails_on_a_newer_release_if_strict(project: Project, before: str) -> None:
    result = _run(project, before, "--amp-strict")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines_random(
        [
            "AmpFailure: autocast's operators on cpu are not those of the spec",
            "*new: mm*",
            "AmpFailure: mm has an autocast kernel on cpu that the spec does not know",
        ]
    )


def test_new_operator_fails_on_a_covered_release(project: Project) -> None:
    result = _run(project, f"{NOW.major}.{NOW.minor}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines_random(["*new: mm*", "AmpFailure: mm has an autocast kernel on cpu *"])
