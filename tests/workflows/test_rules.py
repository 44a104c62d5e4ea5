"""Rules of the workflows: pinned actions, least permissions, and no pull requests on a self-hosted machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.project import ROOT

yaml = pytest.importorskip("yaml", reason="pyyaml is in the dependency group test")

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
ACTIONS = sorted((GITHUB / "actions").glob("*/action.yml"))
#: The jobs that may write, and their permissions.
WRITES = {
    ("baselines.yml", "propose"): {"contents", "pull-requests"},
    ("nightly.yml", "issues"): {"issues"},
    ("release.yml", "attest"): {"id-token", "attestations"},
    ("release.yml", "publish"): {"id-token"},
    ("release.yml", "announce"): {"contents"},
}
#: Commands of a step other than our scripts.
PLAIN = (
    "python -m build",
    "python -m pip install build",
    "python -m pip install --group wheel",
    "python -m pip install --upgrade pip",
    "python -m pip install packaging",
    'gh release create "$GITHUB_REF_NAME" --verify-tag --generate-notes dist/*',
)


def _read(path: Path) -> dict[Any, Any]:
    data: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return data


def _steps(path: Path) -> list[dict[str, Any]]:
    data = _read(path)
    if "runs" in data:
        return list(data["runs"]["steps"])
    return [step for job in data["jobs"].values() for step in job.get("steps", [job])]


def _triggers(path: Path) -> set[str]:
    on = _read(path)[True]  # YAML 1.1 reads "on" as true
    return {on} if isinstance(on, str) else set(on)


def _ids(path: Path) -> str:
    return path.relative_to(GITHUB).as_posix()


def test_workflows_and_actions_are_listed() -> None:
    assert [path.name for path in WORKFLOWS] == ["baselines.yml", "ci.yml", "gpu.yml", "nightly.yml", "release.yml"]
    assert [path.parent.name for path in ACTIONS] == ["amp-gate", "setup"]


@pytest.mark.parametrize("path", [*WORKFLOWS, *ACTIONS], ids=_ids)
def test_actions_are_pinned_by_hash_with_a_version(path: Path) -> None:
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    used = [line.removeprefix("- ").removeprefix("uses: ") for line in lines if "uses: " in line]
    assert used or path.name == "setup"
    for use in used:
        if use.startswith("$/"):  # in this repository, at the commit that runs
            assert (ROOT / use.removeprefix("$/")).exists()
        else:
            assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use), use


def test_action_has_one_hash_everywhere() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in [*WORKFLOWS, *ACTIONS])
    used = set(re.findall(r"uses: ([\w./-]+)@([0-9a-f]{40} # \S+)", text))
    assert len({name for name, _ in used}) == len(used)


@pytest.mark.parametrize("path", WORKFLOWS, ids=_ids)
def test_permissions_are_declared_by_each_job(path: Path) -> None:
    data = _read(path)
    assert data["permissions"] == {}
    for name, job in data["jobs"].items():
        permissions = job["permissions"]
        assert isinstance(permissions, dict)
        assert set(permissions.values()) <= {"read", "write"}
        assert {key for key, value in permissions.items() if value == "write"} == WRITES.get((path.name, name), set())
        assert "timeout-minutes" in job or "uses" in job


@pytest.mark.parametrize("path", [*WORKFLOWS, *ACTIONS], ids=_ids)
def test_steps_have_no_expressions_and_checkouts_store_no_token(path: Path) -> None:
    for step in _steps(path):
        assert "${{" not in step.get("run", "")
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", [*WORKFLOWS, *ACTIONS], ids=_ids)
def test_step_is_one_command(path: Path) -> None:
    for step in _steps(path):
        run = step.get("run")
        if run is None:
            continue
        assert "\n" not in run.strip()
        if run in PLAIN:
            continue
        makes = re.match(r"make ([\w-]+)(?: VENV=none)? PYTHON=python", run)
        if makes:
            assert re.search(rf"^{makes[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        for tests in re.findall(r"tests/\w+(?:\.py)?", run):
            assert (ROOT / tests).exists(), run
        scripts = re.findall(r"(?:\.github/scripts|\.\./\.\./scripts)/(\w+\.py)", run)
        assert all((GITHUB / "scripts" / name).is_file() for name in scripts)
        assert makes or scripts or "gate.py" in run or run.startswith("python -m pytest "), run


def test_scripts_are_run_by_a_workflow_and_a_test() -> None:
    steps = "".join(step.get("run", "") for path in [*WORKFLOWS, *ACTIONS] for step in _steps(path))
    steps += (ROOT / "Makefile").read_text(encoding="utf-8")
    tests = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    names = [path.stem for path in (GITHUB / "scripts").glob("*.py")]
    assert names
    assert [name for name in names if f"{name}.py" not in steps] == []
    assert [name for name in names if f'script("{name}")' not in tests] == []


def test_pull_requests_reach_no_self_hosted_machine() -> None:
    """Start ci.yml alone for pull requests, with all of its jobs on machines of GitHub."""
    assert [path.name for path in WORKFLOWS if "pull_request_target" in _triggers(path)] == []
    assert [path.name for path in WORKFLOWS if _triggers(path) & {"issue_comment", "workflow_run", "issues"}] == []
    assert [path.name for path in WORKFLOWS if "pull_request" in _triggers(path)] == ["ci.yml"]
    ci = _read(GITHUB / "workflows" / "ci.yml")
    assert {job["runs-on"] for job in ci["jobs"].values()} == {"ubuntu-latest"}
    assert "gpu.yml" not in (GITHUB / "workflows" / "ci.yml").read_text(encoding="utf-8")
    # Another repository may call gpu.yml from a pull request of its own: forks are refused there, too.
    assert _triggers(GITHUB / "workflows" / "gpu.yml") == {"workflow_call"}
    (job,) = _read(GITHUB / "workflows" / "gpu.yml")["jobs"].values()
    assert "github.event_name != 'pull_request_target'" in job["if"]
    assert "github.event.pull_request.head.repo.full_name == github.repository" in job["if"]


def test_workflows_use_no_secrets() -> None:
    assert "secrets." not in "".join(path.read_text(encoding="utf-8") for path in [*WORKFLOWS, *ACTIONS])


def test_inputs_passed_to_actions_exist() -> None:
    """actionlint does not check the names of this repository's own actions."""
    for path in [*WORKFLOWS, *ACTIONS]:
        for step in _steps(path):
            if not step.get("uses", "").startswith("$/"):
                continue
            target = ROOT / step["uses"].removeprefix("$/")
            data = _read(target if target.is_file() else target / "action.yml")
            called = data[True]["workflow_call"] if target.is_file() else data
            assert set(step.get("with", {})) <= set((called or {}).get("inputs", {})), step


def test_release_jobs_need_the_checks() -> None:
    jobs = _read(GITHUB / "workflows" / "release.yml")["jobs"]
    assert jobs["check"]["uses"] == "$/.github/workflows/ci.yml"
    needs = {
        name: [job.get("needs", [])] if isinstance(job.get("needs"), str) else job.get("needs", [])
        for name, job in jobs.items()
    }

    def before(name: str) -> set[str]:
        return set(needs[name]).union(*map(before, needs[name]))

    assert {name for name in jobs if "check" in before(name)} == jobs.keys() - {"check"}


def test_missing_baseline_of_a_night_is_red() -> None:
    (job,) = _read(GITHUB / "workflows" / "gpu.yml")["jobs"].values()
    assert [step["name"] for step in job["steps"] if "continue-on-error" in step] == []
    assert "allow-missing" not in job["steps"][-1]["with"]


def test_nightly_runs_every_family_on_a_cpu() -> None:
    """Run the family of the long tier on a CPU, which no other workflow does."""
    families = [path.parent for path in sorted((ROOT / "suites").glob("*/__init__.py"))]
    long = [path.name for path in families if "long_on" in (path / "__init__.py").read_text(encoding="utf-8")]
    assert long == ["kernels"]
    (step,) = [
        step["with"]
        for step in _read(GITHUB / "workflows" / "nightly.yml")["jobs"]["cpu"]["steps"]
        if step.get("uses", "").endswith("/amp-gate")
    ]
    assert (step["tests"], step["tier"]) == ("suites", "all")
    assert "cpu" in step["device"].split(",")
    assert "-k" not in step["args"]


@pytest.mark.parametrize("tool", [("actionlint",), ("zizmor", "--offline", "--no-progress", "--pedantic", ".")])
def test_linters_find_nothing(tool: tuple[str, ...]) -> None:
    if shutil.which(tool[0]) is None:
        pytest.skip(f"{tool[0]} is not installed: it is in the dependency group workflows, and ci.yml runs it")
    done = subprocess.run(tool, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
