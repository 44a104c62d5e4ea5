"""Makefile: the three speeds of a contributor, and the same in the workflow and in CONTRIBUTING.md."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess

import pytest

from tests.project import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
#: Targets that the head of the Makefile describes.
DESCRIBED = re.findall(r"^# make ([\w-]+)", MAKEFILE, re.MULTILINE)

MAKE = shutil.which("make")
QUICK_MARKS = "not planted or one_per_family"

pytestmark = pytest.mark.skipif(MAKE is None, reason="there is no make on PATH")


def commands(*arguments: str) -> list[list[str]]:
    """Return the words of each command that make would run, in an interpreter that is used as it is."""
    assert MAKE is not None
    # A make that runs these tests hands its flags and variables down in the environment.
    variables = ("MAKE", "MFLAGS", "ARGS", "TORCH", "WORKERS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(variables)}
    command = [MAKE, "--dry-run", "--no-print-directory", "VENV=none", "PYTHON=python", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in done.stdout.replace("\\\n", " ").splitlines()]


def pytest_arguments(*arguments: str) -> list[list[str]]:
    """Return the arguments of each run of pytest in the commands of make, from the first path on."""
    runs = [words for words in commands(*arguments) if "pytest" in words]
    return [words[next(i for i, word in enumerate(words) if word.startswith(("tests", "suites"))) :] for words in runs]


@pytest.mark.parametrize("target", DESCRIBED)
def test_described_target_exists(target: str) -> None:
    assert commands(target, "TORCH=torch==2.15.0")


def test_check_runs_static_checks_and_quick_tests() -> None:
    static = [" ".join(words[2:]) for words in commands("check")[:3]]
    assert static == ["ruff check .", "ruff format --check .", "mypy"]
    (run,) = pytest_arguments("check")
    paths = [word.removeprefix("--ignore=") for word in run[: run.index("-n")]]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert {"tests/architecture", "tests/record", "tests/report", "tests/test_planted_defects.py"} <= {*paths}
    options = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").glob("test_option_*.py")}
    assert options
    assert options <= {*paths}
    assert run[run.index("-m") + 1] == QUICK_MARKS


def test_test_runs_static_checks_all_tests_and_the_suites() -> None:
    assert commands("test")[:3] == commands("check")[:3]
    runs = pytest_arguments("test")
    assert [run[0] for run in runs] == ["tests", "suites", "suites"]
    assert runs[0][runs[0].index("-m") + 1] == QUICK_MARKS
    devices = [word for run in runs[1:] for word in run if word.startswith("--amp-device=")]
    assert devices == ["--amp-device=cpu", "--amp-device=fake:cuda,fake:xpu,fake:mps,fake:mtia"]


def test_planted_runs_every_defect_and_the_score() -> None:
    (run,) = pytest_arguments("planted")
    assert run[0] == "tests/test_planted_defects.py"
    assert "-m" not in run
    assert any(".github/scripts/planted_score.py" in words for words in commands("planted"))


@pytest.mark.parametrize("target", ["check", "test", "planted"])
def test_arguments_reach_every_run_of_pytest(target: str) -> None:
    runs = pytest_arguments(target, "ARGS=--exitfirst")
    assert all(any(word.rstrip(";") == "--exitfirst" for word in run) for run in runs)


def test_ci_script_runs_all_targets_in_one_environment() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (line,) = [line for line in script.splitlines() if line.startswith("make ")]
    assert shlex.split(line) == ["make", "--keep-going", "test", "planted", "VENV=$environment/venv"]


@pytest.mark.parametrize("target", ["check", "test", "planted"])
def test_workflow_and_guide_name_the_target(target: str) -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    parts = ["tests", "suites", "fake"] if target == "test" else [target]  # make check has the rest of make test
    assert [part for part in parts if f"run: make {part} VENV=none PYTHON=python" not in workflow] == []
    assert f"$ make {target} " in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
