"""Steps of the support of a release: those that repeat, and each way in which one fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_amp.fingerprint.data import load
from pytest_amp.fingerprint.data import parse as parse_fingerprints
from pytest_amp.record import Kind, Observation, Record, write_record
from pytest_amp.rules.spec import parse_spec
from tests.project import ROOT
from tests.tools.records import LAST, NEXT, RAN, SHARED, record
from tools.fingerprints.update import carried
from tools.release_support import __main__ as command
from tools.release_support import steps
from tools.release_support.environment import expect_version
from tools.release_support.fingerprints import with_record
from tools.release_support.proposal import SPEC
from tools.release_support.workplace import StepFailed, Workplace


@pytest.mark.parametrize(
    ("version", "requirement", "says"),
    [
        ("2.15.0+cpu", "torch==2.15.1", "has torch 2.15.0[+]cpu, and torch==2.15.1 is to be supported"),
        ("2.5.0", "torch", "is older than the data"),
    ],
)
def test_other_version_of_torch_is_refused(version: str, requirement: str, says: str) -> None:
    with pytest.raises(StepFailed, match=says):
        expect_version(version, requirement, LAST)
    expect_version(f"{NEXT}.0+cu130", f"torch=={NEXT}.0", LAST)


@pytest.fixture
def folder(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a workplace whose steps need no torch: records exist, and process runners are replaced."""
    monkeypatch.setattr(command, "ROOT", checkout)
    monkeypatch.setattr(steps, "version_of", lambda _python: f"{NEXT}.0+cpu")
    (tmp_path / "python").touch()
    write_record(record(f"{NEXT}.0"), tmp_path / "new.json.gz", replace=True)
    write_record(record(f"{LAST}.0"), tmp_path / "old.json.gz", replace=True)
    return tmp_path / "place"


def run(folder: Path, *arguments: str) -> int:
    place = folder.parent
    options = ("--folder", str(folder), "--python", str(place / "python"))
    records = ("--record", str(place / "new.json.gz"), "--record-before", str(place / "old.json.gz"))
    return command.main([f"torch=={NEXT}.0", *options, *records, *arguments])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the commands that the steps call, which all succeed without output."""
    commands: list[list[str]] = []

    def call(self: Workplace, argv: list[str], *, log: str, **_: object) -> int:
        commands.append([str(word) for word in argv])
        self.path(log).write_text("done\n", encoding="utf-8")
        return 0

    monkeypatch.setattr(Workplace, "call", call)
    monkeypatch.setattr(steps, "_copy", lambda _root, _tree: None)
    monkeypatch.setattr(steps, "pytest_of", lambda python, _root: [str(python), "-m", "pytest"])
    return commands


def test_finished_steps_are_not_repeated(
    folder: Path, calls: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    del calls
    assert run(folder) == 0
    names = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert names[:-1] == ["environment", "record", "record-before", "fingerprints", "guards", "patch", "verify"]
    assert names[-1].startswith("review ")
    assert run(folder) == 0
    out = capsys.readouterr().out
    assert out.count(": done before: ") == 4
    assert run(folder, "--again", "fingerprints") == 0
    assert capsys.readouterr().out.count(": done before: ") == 3


def test_record_of_a_cpu_has_the_family_kernels(folder: Path, calls: list[list[str]]) -> None:
    """Include the family although it belongs to the long tier on a CPU, which --amp-tier=ordinary deselects."""
    place = Workplace(ROOT, folder, f"torch=={NEXT}.0")
    folder.mkdir()
    place.path("python").write_text(sys.executable, encoding="utf-8")
    write_record(record(f"{NEXT}.0"), folder / "new.json.gz", replace=True)
    with pytest.raises(StepFailed, match=r"record\.json\.gz"):  # the replaced runner writes none
        steps.record(place, steps.Options())
    (command,) = calls
    assert "--amp-tier=all" in command
    assert "suites" in command


def test_checkout_is_changed_with_apply_only(
    folder: Path, calls: list[list[str]], checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del calls
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    assert run(folder) == 0
    assert {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()} == before
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(checkout.parent))
    assert run(folder, "--apply") == 0
    assert parse_spec((checkout / SPEC).read_text(encoding="utf-8")).last == NEXT


@pytest.mark.usefixtures("calls")
def test_lost_guard_ends_the_step(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = Observation("fingerprint/cpu/bf16/addmm", Kind.DTYPE, "fp32 ? | low low", test="test_it::test_it")
    new = Record((SHARED[0], lost, *SHARED[2:]), {"torch": f"{NEXT}.0"}, complete=True, ran=RAN)
    write_record(new, folder.parent / "new.json.gz", replace=True)
    assert run(folder) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    message = "cpu bf16 addmm: fp32 low | low low -> fp32 ? | low low; --keep-lost keeps what was known of each"
    assert last == f"release-support: guards: guard lost: {message}"
    assert not (folder / "release.patch").exists()
    assert run(folder, "--keep-lost") == 0
    assert "fingerprints: done before: " in capsys.readouterr().out  # nothing is read again
    known = load(folder / "fingerprints.txt")
    assert known.expected("cpu", "bf16", f"{NEXT}.0") == {"addmm": {"fp32 low | low low"}}
    assert "- guard kept: cpu bf16 addmm" in (folder / "human.md").read_text(encoding="utf-8")


def test_fingerprints_are_read_from_the_record() -> None:
    changed = Observation("fingerprint/cpu/bf16/addmm", Kind.DTYPE, "fp32 low | =", test="test_it::test_it")
    new = Record((SHARED[0], changed, *SHARED[2:]), {"torch": f"{NEXT}.0+cpu"})
    text, lines = with_record(carried(), new)
    assert "cpu bf16 changed addmm: fp32 low | low low -> fp32 low | =" in lines
    known = parse_fingerprints(text)
    assert known.expected("cpu", "bf16", f"{NEXT}.0")["addmm"] == {"fp32 low | ="}
    assert known.expected("cpu", "bf16", f"{LAST}.0")["addmm"] == {"fp32 low | low low"}
    assert known.measured["cuda"][-1] == LAST


@pytest.mark.parametrize(("count", "says"), [(2, "has 1 of 2 fingerprints of cpu-bf16"), (None, "has no fingerprints")])
def test_record_without_all_fingerprints_is_refused(count: int | None, says: str) -> None:
    entries = Observation("fingerprint/cpu/bf16/entries", Kind.COUNT, count)
    new = Record((SHARED[0], *((SHARED[1], entries) if count else ())), {"torch": f"{NEXT}.0"})
    with pytest.raises(ValueError, match=says):
        with_record(carried(), new)


def test_red_verification_ends_with_1_and_writes_the_patch(
    folder: Path, calls: list[list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del calls

    def call(self: Workplace, argv: list[str], *, log: str, **_: object) -> int:
        self.path(log).write_text("x\n=== 2 failed, 3 passed in 1s ===\n", encoding="utf-8")
        return int("suites/rules" in argv)

    monkeypatch.setattr(Workplace, "call", call)
    assert run(folder) == 1
    assert "release-support: verify: 2 failed, 3 passed in 1s: " in capsys.readouterr().out
    assert (folder / "release.patch").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        ("new.json.gz", "record: "),
        ("old.json.gz", "record-before: the record before is of torch 2.6.0, and the data ends with "),
        ("python", "environment: "),
        ("state", " cannot be read; remove it to begin anew"),
        ("other", " is of torch==1.0; name another --folder"),
    ],
)
@pytest.mark.usefixtures("calls")
def test_failed_step_is_reported_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], planted: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    if planted == "new.json.gz":
        (folder.parent / planted).write_bytes(b"no record")
    elif planted == "old.json.gz":
        write_record(record("2.6.0"), folder.parent / planted, replace=True)
    elif planted == "python":
        monkeypatch.undo()
    else:
        text = "no JSON" if planted == "state" else '{"requirement": "torch==1.0", "steps": {}}'
        (folder / "state.json").write_text(text, encoding="utf-8")
    assert run(folder) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[-1].startswith("release-support: ")
    assert says in out[-1]
    assert len([line for line in out if line.startswith("release-support: ")]) == 1


def test_failed_command_is_reported_with_its_last_line(tmp_path: Path) -> None:
    place = Workplace(ROOT, tmp_path, "torch==9.9.0")
    with pytest.raises(StepFailed, match=r"^no such release [(]status 3; all of it in .*install.log[)]$"):
        place.call([sys.executable, "-c", "print('no such release'); raise SystemExit(3)"], log="install.log")


@pytest.mark.parametrize("requirement", ["numpy==2.0", "torch>=2.15", "torch==2.15; rm", ""])
def test_requirement_without_a_release_is_refused(requirement: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([requirement])
    assert ended.value.code == 2
    assert "is not a release of torch; expected one such as torch==2.15.0" in capsys.readouterr().err


def test_fingerprints_of_the_checkout_have_the_last_release() -> None:
    assert LAST in load(carried()).measured["cpu"]
