"""Scripts of the workflows, run with stand-ins for pip, gh and git if they would use the network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import ROOT
from tests.workflows.scripts import SCRIPTS, script, stand_in

PIP = "torch (2.14.1)\nAvailable versions: 2.14.1, 2.14.0, 2.13.1, 2.13.0, 2.15.0rc1, 2.12.0\nINSTALLED: 2.9\n"
STABLE = '["gate-stable", "last-green"]'


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of the stand-ins' calls; their folder comes first in PATH."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def _calls_of_gh(calls: Path) -> list[list[str]]:
    return [json.loads(line) for line in calls.read_text(encoding="utf-8").splitlines()]


def test_install_puts_torch_first_and_splits_words() -> None:
    commands = script("install").commands
    expected = {"TORCH": "torch==2.9.1", "PYTEST": "pytest==9.0.*", "EXTRAS": "all", "GROUPS": "test,docs"}
    actual = commands(expected, "python")
    assert [command[4:] for command in actual] == [
        ["--upgrade", "pip>=25.1"],
        ["torch==2.9.1"],
        ["--editable", f"{ROOT}[all]", f"--group={ROOT}/pyproject.toml:test", f"--group={ROOT}/pyproject.toml:docs"],
        ["pytest==9.0.*"],
    ]
    assert all(command[:4] == ["python", "-m", "pip", "install"] for command in actual)
    (torch,) = [command for command in commands({}, "python") if "torch" in command]
    assert torch[4:] == ["--constraint", str(ROOT / "constraints.txt"), "torch"]
    nightly = commands({"TORCH": "torch", "TORCH_INDEX": "https://example.org/nightly/cpu"}, "python")[1]
    assert nightly[4:] == ["--index-url", "https://example.org/nightly/cpu", "--pre", "torch"]


def test_install_prints_a_dry_run_and_returns_the_failed_status(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, "TORCH": "torch; touch injected", "GITHUB_WORKSPACE": str(ROOT)}
    command = [sys.executable, str(SCRIPTS / "install.py"), "--dry-run"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "'torch;' touch injected" in done.stdout
    module = script("install")
    monkeypatch.setattr(module, "commands", lambda *_: [[sys.executable, "-c", "raise SystemExit(3)"], ["never"]])
    assert module.main([]) == 3


@pytest.mark.parametrize(("alive", "status"), [(0, 0), (1, 1)])
def test_planted_score_counts_detected_defects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alive: int, status: int
) -> None:
    name = "test_planted_defect_is_detected"
    cases = f'<testcase name="{name}[a]"/><testcase name="{name}[b]">{"<failure/>" * alive}</testcase>'
    junit = tmp_path / "planted.xml"
    junit.write_text(f"<testsuites>{cases}<testcase name='test_manifest'><failure/></testcase></testsuites>")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page"))
    command = [sys.executable, str(SCRIPTS / "planted_score.py"), str(junit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stdout.splitlines() == [f"planted defects: {2 - alive} of 2 killed", *["survived: b"] * alive]
    assert done.stdout.splitlines()[0] in (tmp_path / "page").read_text(encoding="utf-8")


def test_planted_score_without_defects_is_red(tmp_path: Path) -> None:
    junit = tmp_path / "planted.xml"
    junit.write_text("<testsuites/>")
    assert script("planted_score").main([str(junit)]) == 1


def test_torch_channels_prints_matrices(tmp_path: Path) -> None:
    environment = {**os.environ, "GITHUB_OUTPUT": str(tmp_path / "output"), "NIGHTLY_INDEX": "https://example.org/n"}
    command = [sys.executable, str(SCRIPTS / "torch_channels.py")]
    done = subprocess.run(command, input=PIP, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == (tmp_path / "output").read_text(encoding="utf-8")
    matrices = {name: json.loads(text) for name, _, text in (line.partition("=") for line in done.stdout.splitlines())}
    assert matrices["cpu"] == [{"channel": "stable", "torch": "torch", "index": ""}]
    assert matrices["channels"] == [
        {"channel": "previous", "torch": "torch==2.13.1", "index": ""},
        {"channel": "stable", "torch": "torch==2.14.1", "index": ""},
        {"channel": "nightly", "torch": "torch", "index": "https://example.org/n"},
    ]


def test_nightly_build_without_a_gpu_needs_an_index() -> None:
    expected = {"TORCH_CPU_INDEX": "https://example.org/cpu", "NIGHTLY_CPU_INDEX": "https://example.org/n/cpu"}
    assert script("torch_channels").without_gpu(expected) == [
        {"channel": "stable", "torch": "torch", "index": "https://example.org/cpu"},
        {"channel": "nightly", "torch": "torch", "index": "https://example.org/n/cpu"},
    ]


@pytest.mark.parametrize(
    ("text", "expected", "message"),
    [
        (PIP, {"CHANNELS": "nightly"}, "names no index"),
        (PIP, {"CHANNELS": "lts"}, "unknown channel 'lts'"),
        ("", {}, "pip listed no versions"),
        ("Available versions: 2.0.0", {}, "no release before"),
    ],
)
def test_torch_channels_refuses_unknown_channels_or_versions(text: str, expected: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        script("torch_channels").channels(text, expected)


def test_last_green_downloads_the_latest_records(calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = ('[{"databaseId": 7}, {"databaseId": 5}]', 0)
    retained = {
        f"api repos/{{owner}}/{{repo}}/actions/runs/{run}/": (text, 0) for run, text in ((7, "[]"), (5, STABLE))
    }
    stand_in(tmp_path / "programs", "gh", {"run list": runs, **retained, "run download": ("", 0)})
    for name, value in {"WORKFLOW": "nightly.yml", "BRANCH": "main", "ARTIFACTS": "gate-stable,gate-nightly"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("FOLDER", str(tmp_path / "green"))
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "output"))
    module = script("last_green")
    assert module.main() == 0
    output = _calls_of_gh(calls)
    assert [call[1:3] for call in output][0::3] == [["run", "list"], ["run", "download"]]
    assert output[0][output[0].index("--branch") + 1] == "main"
    assert output[3][3:6] == ["5", "--name", "gate-stable"]
    assert len(output) == 4
    assert (tmp_path / "output").read_text(encoding="utf-8") == 'records=["gate-stable"]\n'
    # An existing record that cannot be fetched is not a first night.
    stand_in(tmp_path / "programs", "gh", {"run list": runs, **retained, "run download": ("", 1)})
    assert module.main() == 1
    stand_in(tmp_path / "programs", "gh", {"run list": ("", 1)})
    assert module.main() == 1


RECORD = {
    "schema": 4,
    "complete": True,
    "provenance": {"torch": "2.13.0", "devices": {}, "seed": 0},
    "summary": {},
    "observations": [
        {
            "test": "test_registered::test_rule",
            "kind": "dtype",
            "rows": [["rules/cuda/bf16/aten::softmax.int", "float32"]],
        }
    ],
}


def test_propose_baseline_opens_or_updates_a_pull_request(
    calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Propose a record, the same record again, and another one; gh is a stand-in, git is real."""
    pytest.importorskip("packaging")
    origin, work = tmp_path / "origin.git", tmp_path / "work"
    for command in (
        ["git", "init", "--quiet", "--bare", str(origin)],
        ["git", "clone", "--quiet", str(origin), str(work)],
    ):
        subprocess.run(command, check=True, capture_output=True)
    monkeypatch.chdir(work)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    record = tmp_path / "record.json"
    record.write_text(json.dumps(RECORD), encoding="utf-8")
    stand_in(tmp_path / "programs", "gh", {"pr list": ("[]", 0)})
    module = script("propose_baseline")
    assert module.propose(record, "h100") == "opened a pull request for baseline/h100"
    assert _calls_of_gh(calls)[-1][-1] == module.FIRST
    assert module.propose(record, "h100") == "baselines/h100.json says the same"
    record.write_text(record.read_text(encoding="utf-8").replace("float32", "bfloat16"), encoding="utf-8")
    stand_in(tmp_path / "programs", "gh", {"pr list": ('[{"number": 1}]', 0)})
    assert module.propose(record, "h100") == "updated the pull request of baseline/h100"
    assert "aten::softmax.int" in _calls_of_gh(calls)[-1][-1]
    branches = subprocess.run(["git", "branch"], cwd=origin, capture_output=True, text=True, check=True).stdout  # noqa: S607
    assert "baseline/h100" in branches
    assert module.main([str(record), "../up"]) == 2
    stand_in(tmp_path / "programs", "gh", {"": ("", 1)})
    record.write_text(record.read_text(encoding="utf-8").replace("bfloat16", "float16"), encoding="utf-8")
    assert module.main([str(record), "h100"]) == 1


def test_release_version_compares_tag_and_files() -> None:
    module = script("release_version")
    texts = ('version = "1.2.0"\n', '__version__ = "1.2.0"\n', "# Changelog\n\n## 1.2.0\n")
    assert module.problem("v1.2.0", *texts) is None
    assert "the tag is v1.3.0" in module.problem("v1.3.0", *texts)
    assert "unreleased" in module.problem("v1.2.0", *texts[:2], "## 1.2.0 (unreleased)\n")
    assert "has no version" in module.problem("v1.2.0", "", "", "")
    assert module.main(["v0.0.0"]) == 1  # of the checkout itself


def test_try_wheel_without_a_known_tool_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert script("try_wheel").main(["conda"]) == 2
    assert "pip|uv|pipx" in capsys.readouterr().err


def test_try_wheel_installs_in_a_new_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = script("try_wheel")
    commands: list[list[str]] = []
    monkeypatch.setattr(module, "run", lambda command, _folder, **_: commands.append(command))
    monkeypatch.setenv("LOWEST", "1")
    wheel = tmp_path / "x.whl"
    assert module.install("uv", wheel, tmp_path)[1:] == ["-m", "pytest"]
    lowest = ["--resolution", "lowest-direct", "-r", str(ROOT / "pyproject.toml"), "--extra", "suites"]
    assert commands[-2][-6:] == lowest
    assert commands[-1][-1:] == [f"{wheel}[suites]"]
    monkeypatch.delenv("LOWEST")
    monkeypatch.setenv("TORCH_INDEX", "https://example.org/cpu")
    module.install("pip", wheel, tmp_path)
    assert commands[-2][-3:] == ["--index-url", "https://example.org/cpu", "torch"]
    assert module.install("pipx", wheel, tmp_path)[0].startswith(str(tmp_path / "pipx"))
