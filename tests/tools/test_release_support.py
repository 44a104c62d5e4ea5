"""The support of a release: what a record changes in the data, step by step, and each way in which a step fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_amp import toml
from pytest_amp.faults import FILE, faults_beside
from pytest_amp.fingerprint.data import load
from pytest_amp.fingerprint.data import parse as parse_fingerprints
from pytest_amp.fingerprint.update import carried
from pytest_amp.record import FIXED, Failure, Kind, Observation, Record, write_record
from pytest_amp.releases import release_of
from pytest_amp.rules.spec import load_spec, parse_spec
from tests.project import ROOT
from tools.release_support import __main__ as command
from tools.release_support import pages, steps
from tools.release_support.differences import CHANGES
from tools.release_support.environment import expect_version
from tools.release_support.fingerprints import with_record
from tools.release_support.notes import Note, documented, note_of, read_notes
from tools.release_support.patch import patch
from tools.release_support.proposal import SPEC, Observed, Proposal, human_list, propose
from tools.release_support.spec_rows import RuleChanges, edited, written
from tools.release_support.workplace import StepFailed, Workplace

LAST = load_spec().last
NEXT = f"{release_of(LAST)[0]}.{release_of(LAST)[1] + 1}"
FAMILIES = ("rules", "gradients", "fingerprint")
RAN = {f"{device}-bf16 {family}": ("test_it::test_it",) for device in ("cpu", "fake-cuda") for family in FAMILIES}
#: What every record has, so that the records share something.
SHARED = (
    Observation("rules/cpu/bf16/aten::mm", Kind.RULE, "lower_precision_fp", test="test_it::test_it"),
    Observation("fingerprint/cpu/bf16/addmm", Kind.DTYPE, "fp32 low | low low", test="test_it::test_it"),
    Observation("fingerprint/cpu/bf16/entries", Kind.COUNT, 1, test="test_it::test_it"),
)
MENDED = "distributed/cpu/{}/test_fully_shard::test_it[a]"


def observation(key: str, value: object, kind: Kind = Kind.RULE) -> Observation:
    return Observation(key, kind, value, test="test_it::test_it")  # type: ignore[arg-type]


def record(version: str, *observations: Observation, failures: tuple[Failure, ...] = ()) -> Record:
    return Record((*SHARED, *observations), {"torch": version}, complete=True, ran=RAN, failures=failures)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files of the checkout that the tool changes."""
    root = tmp_path / "checkout"
    for name in (SPEC, CHANGES, pages.MATRIX, pages.CHANGELOG, pages.FINGERPRINT, pages.RULES, pages.UPGRADE):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, root / name)
    fingerprints = root / "pytest_amp" / "fingerprint"
    fingerprints.mkdir()
    shutil.copyfile(carried(), fingerprints / "fingerprints.txt")
    (root / "suites" / "distributed").mkdir(parents=True)
    (root / "suites" / "rules").mkdir(parents=True)
    return root


def proposal(checkout: Path, new: Record, *, old: Record | None = None, notes: Path | None = None) -> Proposal:
    before = record(f"{LAST}.0") if old is None else old
    log = ("guard kept: cpu bf16 polar: complex64 bcomplex32 | = -> complex64 ? | =",)
    return propose(checkout, Observed(before, new, carried(), log, notes))


def test_release_without_a_change_ends_the_data_later(checkout: Path) -> None:
    found = proposal(checkout, record(f"{NEXT}.0+cpu"))
    spec = parse_spec(found.files[SPEC])
    assert spec.last == NEXT
    assert found.files[CHANGES] == (ROOT / CHANGES).read_text(encoding="utf-8")
    assert FILE not in str(found.files.keys())
    assert f"- torch {NEXT} is supported: " in found.files[pages.CHANGELOG]
    assert f"torch: torch=={NEXT}.0," in found.files[pages.MATRIX]
    assert f"It is right for torch 2.6 to {NEXT}" in found.files[pages.RULES]
    assert "guard kept: cpu bf16 polar" in human_list(found)


def test_patch_applies_and_gives_what_was_proposed(checkout: Path) -> None:
    mended = tuple(Failure(MENDED.format(dtype), f"{FIXED}a/b#1: x passes on cpu") for dtype in ("bf16", "fp16"))
    found = proposal(checkout, record(f"{NEXT}.0", failures=mended))
    file = checkout.parent / "release.patch"
    file.write_text(found.patch, encoding="utf-8")
    outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(checkout.parent)}
    subprocess.run(["git", "apply", str(file)], cwd=checkout, check=True, env=outside)  # noqa: S607  # where PATH has it
    for name, text in found.files.items():
        assert (checkout / name).read_text(encoding="utf-8") == text
    assert patch(checkout, found.files) == ""


def test_rule_that_is_new_changes_or_goes_has_its_rows(checkout: Path) -> None:
    gone = observation("rules/cpu/bf16/gone operators", ["dist", "conv3d"], Kind.STATE)
    new = record(
        f"{NEXT}.0",
        observation("rules/cpu/bf16/aten::fresh", "fp32"),
        observation("rules/fake-cuda/bf16/aten::fresh", "promote"),
        observation("rules/cpu/bf16/aten::acos", "fp32"),
        observation("rules/fake-cuda/bf16/aten::softmax.int", "lower_precision_fp"),
        Observation(gone.key, gone.kind, ["conv3d"], test=gone.test),
    )
    rules = parse_spec(proposal(checkout, new).files[SPEC]).rules
    (fresh,), (acos,) = rules["cpu"]["aten::fresh"], rules["cpu"]["aten::acos"]
    assert (fresh.name.value, fresh.since, fresh.source) == ("fp32", NEXT, f"read from the dispatcher of {NEXT}.0")
    assert (acos.since, rules["cuda"]["aten::fresh"][0].name.value) == (NEXT, "promote")
    assert rules["cuda"]["aten::acos"][0].since is None  # CUDA had it
    was, now = rules["cuda"]["aten::softmax.int"]
    assert (was.name.value, was.until, now.name.value, now.since) == (
        "fp32_set_opt_dtype",
        LAST,
        "lower_precision_fp",
        NEXT,
    )
    assert rules["cpu"]["aten::conv3d"][0].until == LAST
    assert rules["xpu"]["aten::conv3d"][0].until is None


def test_every_row_of_the_spec_can_be_written_again() -> None:
    """A row that is edited is written anew: nothing else in it may change."""
    text = (ROOT / SPEC).read_text(encoding="utf-8")
    rows = [line.strip().rstrip(",") for line in text.splitlines() if line.startswith("  { name")]
    assert len(rows) > 150
    assert [row for row in rows if written(toml.loads(f"row = {row}")["row"]) != row] == []


def test_overload_without_a_row_is_named() -> None:
    text = (ROOT / SPEC).read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="the spec has no row for nowhere"):
        edited(text, RuleChanges(gone={"cpu": ["nowhere"]}), before=LAST, release=NEXT, version=f"{NEXT}.0")


def test_rule_that_no_row_can_say_is_for_people(checkout: Path) -> None:
    new = record(
        f"{NEXT}.0",
        observation("rules/cpu/bf16/aten::odd", "fp32"),
        observation("rules/cpu/fp16/aten::odd", "lower_precision_fp"),
    )
    assert "- the rule of odd on cpu is fp32 or lower_precision_fp: no row can say so" in human_list(
        proposal(checkout, new)
    )


def test_mended_fault_has_a_row_for_where_it_was_seen(checkout: Path) -> None:
    both = [
        Failure(MENDED.format(d), f"{FIXED}pytorch/pytorch#1, #2: why passes on cpu-{d}; remove it")
        for d in ("bf16", "fp16")
    ]
    one = Failure("rules/cpu/bf16/test_x::test_y", f"{FIXED}no report found: odd passes on cpu-bf16; remove it")
    red = Failure("rules/cpu/bf16/test_x::test_z", "AmpFailure: softmax is low")
    found = proposal(checkout, record(f"{NEXT}.0", failures=(*both, one, red)))
    (checkout / "suites" / FILE).write_text(found.files[f"suites/{FILE}"], encoding="utf-8")
    first, second = faults_beside(checkout / "suites" / "distributed")
    assert (first.key, first.report, first.reason, first.until) == (
        MENDED.format("*"),
        "pytorch/pytorch#1, #2",
        "why",
        LAST,
    )
    assert (second.key, second.report) == ("rules/cpu/bf16/test_x::test_y", "no report found")
    page = human_list(found)
    assert "- AmpFailure: softmax is low: rules/cpu/bf16/test_x::test_z" in page
    assert "on a GPU: make gate AMP_DEVICE=cuda" in page
    again = proposal(checkout, record(f"{NEXT}.0", failures=tuple(both)))
    assert f"suites/{FILE}" not in again.files  # it has its rows


def test_difference_has_the_reason_of_the_release_notes(checkout: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("# Improvements\n- `clamp_odd` shares its gradient ([#191142](https://example.org))\n- nothing\n")
    keys = ["gradients/cpu/bf16/clamp_odd/input.0", "gradients/cpu/bf16/unheard_of/input.0"]
    old = record(f"{LAST}.0", *(observation(key, 1, Kind.COUNT) for key in keys))
    new = record(f"{NEXT}.0", *(observation(key, 2, Kind.COUNT) for key in keys))
    found = proposal(checkout, new, old=old, notes=notes)
    row = toml.loads(found.files[CHANGES])["change"][0]
    assert row == {
        "since": NEXT,
        "keys": ["gradients/*/*/clamp_odd/input.0"],
        "text": "clamp_odd shares its gradient",
        "source": "pytorch/pytorch#191142",
    }
    page = human_list(found)
    assert "- changed gradients/cpu/bf16/unheard_of/input.0: 1 -> 2" in page
    assert f"- find the release: pytest-amp bisect {LAST}.0 {NEXT}.0 -k test_it --device=cpu --dtype=bf16" in page
    assert "clamp_odd" not in page


def test_entry_that_is_new_in_torchs_tests_has_its_reason(checkout: Path) -> None:
    new = record(f"{NEXT}.0", observation("fingerprint/cpu/bf16/nn.Fresh", "fp32 low | =", Kind.DTYPE))
    row = toml.loads(proposal(checkout, new).files[CHANGES])["change"][0]
    assert (row["keys"], row["text"]) == (["fingerprint/*/*/nn.Fresh"], "torch's own tests list it")


def test_note_that_is_not_the_only_one_gives_no_reason() -> None:
    notes = [Note("clamp_odd is faster", "a#1"), Note("clamp_odd takes bf16", "a#2"), Note("other", "a#3")]
    assert note_of("clamp_odd/input.0", notes) is None
    assert note_of("other", notes) == notes[2]
    assert note_of("nn.Odd", notes) is None


def test_notes_without_a_pull_request_are_none(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("- a change\n- another (#123456)\n", encoding="utf-8")
    assert read_notes(tmp_path / "notes.md") == [Note("another", "pytorch/pytorch#123456")]


def test_documented_changes_are_found(tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    text = '"""\n.. versionchanged:: 2.15\n    With ``None``, gradients\n    follow.\n\n.. versionadded:: 2.1\n"""\n'
    (package / "api.py").write_text(text, encoding="utf-8")
    assert list(documented(package, "2.15")) == ["torch/api.py:2: With ``None``, gradients follow."]


MATRIX = """
          - { python: "3.12", torch: torch==2.13.0, pytest: pytest==9.2.* }
          - { python: "3.13", torch: torch==2.14.1, pytest: pytest==9.2.* }
          - { python: "3.14", torch: torch==2.14.1, pytest: pytest==9.2.* }
          - { python: "3.13", torch: torch, pytest: "git+https://example.org" }
"""


def test_matrix_keeps_the_release_before() -> None:
    lines = pages.matrix(MATRIX, "2.15.0").splitlines()
    assert [line.partition("torch: ")[2].partition(",")[0] for line in lines[1:]] == [
        *("torch==2.13.0", "torch==2.14.1", "torch==2.15.0", "torch")
    ]
    again = pages.matrix("\n".join(lines), "2.16.0").splitlines()
    assert [line.count("torch==2.15.0") + line.count("torch==2.16.0") for line in again[3:5]] == [1, 1]
    assert pages.matrix(MATRIX, "2.14.1") == MATRIX


@pytest.mark.parametrize(
    ("version", "requirement", "says"),
    [
        ("2.15.0+cpu", "torch==2.15.1", "has torch 2.15.0[+]cpu, and torch==2.15.1 is to be supported"),
        ("2.5.0", "torch", "is older than the data"),
    ],
)
def test_torch_that_is_not_the_one_is_refused(version: str, requirement: str, says: str) -> None:
    with pytest.raises(StepFailed, match=says):
        expect_version(version, requirement, LAST)
    expect_version(f"{NEXT}.0+cu130", f"torch=={NEXT}.0", LAST)


@pytest.fixture
def folder(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workplace whose steps need no torch: records are there, and what runs processes is replaced."""
    monkeypatch.setattr(command, "ROOT", checkout)
    monkeypatch.setattr(steps, "version_of", lambda _python: f"{NEXT}.0+cpu")
    (tmp_path / "python").touch()
    write_record(record(f"{NEXT}.0"), tmp_path / "new.json.gz", replace=True)
    write_record(record(f"{LAST}.0"), tmp_path / "old.json.gz", replace=True)
    return tmp_path / "place"


def run(folder: Path, *arguments: str) -> int:
    place = folder.parent
    given = ("--folder", str(folder), "--python", str(place / "python"))
    records = ("--record", str(place / "new.json.gz"), "--record-before", str(place / "old.json.gz"))
    return command.main([f"torch=={NEXT}.0", *given, *records, *arguments])


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that the steps call, which all succeed and say nothing."""
    said: list[list[str]] = []

    def call(self: Workplace, argv: list[str], *, log: str, **_: object) -> int:
        said.append([str(word) for word in argv])
        self.path(log).write_text("done\n", encoding="utf-8")
        return 0

    monkeypatch.setattr(Workplace, "call", call)
    monkeypatch.setattr(steps, "_copy", lambda _root, _tree: None)
    monkeypatch.setattr(steps, "pytest_of", lambda python, _root: [str(python), "-m", "pytest"])
    return said


def test_steps_that_are_done_are_not_done_again(
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


def test_nothing_of_the_checkout_changes_unless_asked(
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
def test_guard_that_would_be_lost_ends_the_step(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = Observation("fingerprint/cpu/bf16/addmm", Kind.DTYPE, "fp32 ? | low low", test="test_it::test_it")
    new = Record((SHARED[0], lost, *SHARED[2:]), {"torch": f"{NEXT}.0"}, complete=True, ran=RAN)
    write_record(new, folder.parent / "new.json.gz", replace=True)
    assert run(folder) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    said = "cpu bf16 addmm: fp32 low | low low -> fp32 ? | low low; --keep-lost keeps what was known of each"
    assert last == f"release-support: guards: guard lost: {said}"
    assert not (folder / "release.patch").exists()
    assert run(folder, "--keep-lost") == 0
    assert "fingerprints: done before: " in capsys.readouterr().out  # nothing is read anew
    known = load(folder / "fingerprints.txt")
    assert known.expected("cpu", "bf16", f"{NEXT}.0") == {"addmm": {"fp32 low | low low"}}
    assert "- guard kept: cpu bf16 addmm" in (folder / "human.md").read_text(encoding="utf-8")


def test_fingerprints_come_from_the_record() -> None:
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


def test_red_verification_ends_with_1_and_leaves_the_patch(
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
def test_step_that_fails_says_so_in_one_line(
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


def test_command_that_fails_is_told_by_its_last_line(tmp_path: Path) -> None:
    place = Workplace(ROOT, tmp_path, "torch==9.9.0")
    with pytest.raises(StepFailed, match=r"^no such release [(]status 3; all of it in .*install.log[)]$"):
        place.call([sys.executable, "-c", "print('no such release'); raise SystemExit(3)"], log="install.log")


@pytest.mark.parametrize("requirement", ["numpy==2.0", "torch>=2.15", "torch==2.15; rm", ""])
def test_requirement_that_is_no_release_is_refused(requirement: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([requirement])
    assert ended.value.code == 2
    assert "is no release of torch; expected one such as torch==2.15.0" in capsys.readouterr().err


def test_fingerprints_of_the_checkout_are_read() -> None:
    assert LAST in load(carried()).measured["cpu"]
