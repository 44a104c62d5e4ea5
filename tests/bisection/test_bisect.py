"""``pytest-amp bisect`` with a stand-in for the installer: the installed release of torch is a name in a file."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_amp.bisection import REQUIREMENTS, Installer, InstallFailed, Question, Standing, Trials
from pytest_amp.bisection.trial import _run as run
from pytest_amp.bisection.trial import forget
from pytest_amp.cli import main
from pytest_amp.record import Kind, Observation, Record, Verdict, read_record
from pytest_amp.record.file import Failure, dumps
from tests.project import ROOT

RELEASES = ("2.10.0", "2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0")
#: A test whose dtype depends on the "installed" release.
OBSERVING = """
import os
from pathlib import Path


def test_softmax(amp):
    release = Path(os.environ["RELEASE"]).read_text()
    amp.observe("softmax", "float32" if release < "2.12" else "bfloat16", kind="dtype")
"""


def _pretend(_python: str, arguments: Sequence[str], record: Path, _scratch: Path, log: Path) -> int:
    """Replace a run of pytest: softmax changes with 2.12, sum fails from 2.13 on, ``never`` does neither."""
    release = Path(os.environ["RELEASE"]).read_text(encoding="utf-8")
    what = arguments[arguments.index("-k") + 1]
    values = {"softmax": "float32" if release < "2.12" else "bfloat16", "sum": "float32", "never": "float32"}
    failed = what == "sum" and release >= "2.13"
    test = f"test_it.py::test_{what}"
    observed = Observation(f"project/cpu/bf16/{what}", Kind.DTYPE, values[what], test=test)
    record.write_text(
        dumps(
            Record(
                () if failed else (observed,),
                {"torch": release},
                ran={"cpu-bf16 project": () if failed else (test,)},
                failures=(Failure(f"project/cpu/bf16/{test}", "AmpFailure: it broke"),) if failed else (),
            )
        ),
        encoding="utf-8",
    )
    log.write_text("1 passed\n", encoding="utf-8")
    return int(failed)


class Fake(Installer):
    """Environment that is this interpreter, with the name of its release in a file."""

    def make(self, release: str, folder: Path, log: Path) -> str:
        folder.mkdir()
        Path(os.environ["RELEASE"]).write_text(release, encoding="utf-8")
        result = Path(os.environ["MADE"])
        result.write_text(
            (result.read_text(encoding="utf-8") if result.exists() else "") + f"{release}\n", encoding="utf-8"
        )
        if release in os.environ["BROKEN"].split(","):
            log.write_text("no wheel\n", encoding="utf-8")
            raise InstallFailed(f"there is no wheel of {release}")
        return sys.executable


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, with stand-ins for the installer and for pytest."""
    monkeypatch.setattr("pytest_amp.bisection.trial._run", _pretend)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELEASE", str(tmp_path / "release"))
    monkeypatch.setenv("MADE", str(tmp_path / "made"))
    monkeypatch.setenv("BROKEN", "")
    monkeypatch.setattr("pytest_amp.cli.bisect.Installer", Fake)
    monkeypatch.setattr("pytest_amp.cli.bisect.listed", lambda: list(RELEASES))
    return tmp_path


def installed_releases(folder: Path) -> list[str]:
    """Return the releases that were installed, in order, and reset the list."""
    path = folder / "made"
    names = path.read_text(encoding="utf-8").split() if path.exists() else []
    path.unlink(missing_ok=True)
    return names


def test_trial_runs_pytest_without_options_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEASE", str(tmp_path / "release"))
    monkeypatch.setenv("PYTEST_ADDOPTS", "--no-such-option")
    (tmp_path / "test_it.py").write_text(OBSERVING, encoding="utf-8")
    log = tmp_path / "log"
    observed = []
    for release in ("2.11.0", "2.13.0"):
        (tmp_path / "release").write_text(release, encoding="utf-8")
        scratch = tmp_path / release
        scratch.mkdir()
        arguments = ("test_it.py", "--amp-device=cpu", "--amp-dtype=bf16", f"--rootdir={tmp_path}")
        monkeypatch.chdir(tmp_path)
        assert run(sys.executable, arguments, scratch / "record.json", scratch, log) == 0, log.read_text()
        observed.append(read_record(scratch / "record.json").by_key()["project/cpu/bf16/softmax"].value)
    assert observed == ["float32", "bfloat16"]


def test_bisect_finds_the_release_of_a_changed_fact(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bisect", "2.10.0", "2.14.0", "-k", "softmax"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[:2] == [
        "torch 2.12.0 is the first that differs from 2.10.0; 2.11.0 is the same",
        "  changed: project/cpu/bf16/softmax: float32 -> bfloat16",
    ]
    installed = installed_releases(folder)
    assert installed[:2] == ["2.10.0", "2.14.0"]
    assert len(installed) == len(set(installed)) <= 5
    assert re.search(r"^\[#+\.+\] 1 of at most 5, \d+ s: torch 2\.14\.0: installing$", err, re.MULTILINE)
    assert not list((folder / ".pytest-amp-bisect").glob("*/*/venv"))  # thrown away
    # A second time nothing is installed, and the answer is the same.
    assert main(arguments) == 0
    assert capsys.readouterr().out == out
    assert installed_releases(folder) == []
    # A different question is not answered from these results.
    with pytest.raises(SystemExit) as ended:
        main([*arguments[:-1], "never"])
    assert ended.value.code == 2
    assert "is of another question; expected --restart" in capsys.readouterr().err
    assert main([*arguments[:-1], "never", "--restart"]) == 1
    assert capsys.readouterr().out == "nothing differs between torch 2.10.0 and 2.14.0\n"


def test_bisect_finds_the_release_of_a_failed_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", "2.10.0", "2.14.0", "-k", "sum"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("torch 2.13.0 is the first that differs from 2.10.0; 2.12.1 is the same\n  failed: ")
    assert installed_releases(folder)


def test_interrupted_search_is_continued(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Fake):
        def make(self, release: str, folder: Path, log: Path) -> str:
            if release == "2.12.0":
                raise KeyboardInterrupt
            return super().make(release, folder, log)

    arguments = ["bisect", "2.10.0", "2.14.0", "-k", "softmax"]
    monkeypatch.setattr("pytest_amp.cli.bisect.Installer", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        main(arguments)
    before = installed_releases(folder)
    monkeypatch.setattr("pytest_amp.cli.bisect.Installer", Fake)
    assert main(arguments) == 0
    assert set(before).isdisjoint(installed_releases(folder))


def test_release_that_cannot_be_installed_is_skipped_and_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert folder
    monkeypatch.setenv("BROKEN", "2.12.0")
    assert main(["bisect", "2.10.0", "2.14.0", "-k", "softmax"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "torch 2.12.1 is the first that differs from 2.10.0; 2.11.0 is the same"
    assert lines[-1] == "not tried: 2.12.0: there is no wheel of 2.12.0"
    monkeypatch.setenv("BROKEN", "2.10.0")
    with pytest.raises(SystemExit):
        main(["bisect", "2.10.0", "2.14.0", "-k", "sum", "--restart"])
    assert "torch 2.10.0 could not be tried: there is no wheel" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("2.14.0", "2.10.0"), "2.14.0 is not older than 2.10.0"),
        (("2.10.0", "2.99.0"), "there is no torch 2.99.0 here"),
        (("2.10.0", "2.14.0", "--fail-on=worse"), "'worse' is not a verdict"),
        (("2.10.0", "2.14.0", "--device=gpu"), "'gpu' is not a device; expected auto, all, cpu, cuda"),
        (("2.10.0", "2.14.0", "--dtype=int8"), "'int8' is not a dtype; expected "),
        (("2.10.0", "2.14.0", "--wheels=."), ". has no wheel of torch; expected a folder with torch-*.whl of both"),
        (("2.10.0", "2.14.0", "--wheels=nowhere"), "nowhere is not a folder; expected one with wheels of torch"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    folder: Path, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bisect", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert installed_releases(folder) == []


def test_trial_without_a_test_run_is_broken_with_its_last_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def usage_error(*arguments: object) -> int:
        assert isinstance(arguments[-1], Path)
        arguments[-1].write_text("usage: pytest\nERROR: no such option\n", encoding="utf-8")
        return 4

    monkeypatch.setattr("pytest_amp.bisection.trial._run", usage_error)
    question = Question("2.10.0", "2.14.0", (), (Verdict.CHANGED.value,))
    trial = Trials(question, folder / "found", Fake("uv"))("2.10.0")
    assert trial.outcome is Standing.BROKEN
    assert trial.facts == ("pytest ended with 4: ERROR: no such option",)


def test_forget_refuses_a_folder_of_others(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(ValueError, match="is left alone"):
        forget(tmp_path)
    assert (tmp_path / "precious").exists()
    forget(tmp_path / "absent")


@pytest.mark.parametrize("tool", ["uv", "pip"])
def test_installer_has_the_commands_of_its_tool(tmp_path: Path, tool: str) -> None:
    installer = Installer(tool, tmp_path, ("--pre",), ("einops",), "python3.12")
    make, install = installer.commands("2.13.0", tmp_path / "venv", "venv/bin/python")
    assert make[-1] == str(tmp_path / "venv")
    assert "python3.12" in make
    start = install.index("--find-links")
    assert install[start:] == ["--find-links", str(tmp_path), "--pre", "torch==2.13.0", *REQUIREMENTS, "einops"]


def test_installer_reports_a_missing_or_failing_tool(tmp_path: Path) -> None:
    for python, message in ((str(tmp_path / "no-python"), "No such file"), ("false", "ended with 1; see")):
        with pytest.raises(InstallFailed, match=message):
            Installer("pip", python=python).make("2.13.0", tmp_path / "venv", tmp_path / "log")


def test_requirements_are_those_of_the_project() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    dependencies = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    suites = re.search(r"^suites = (\[.*?\])", text, re.MULTILINE)
    assert dependencies is not None
    assert suites is not None
    expected = [*re.findall(r'"(.+?)",?$', dependencies[1], re.MULTILINE), *json.loads(suites[1])]
    assert sorted(REQUIREMENTS) == sorted(
        requirement for requirement in expected if not requirement.startswith("torch")
    )
