"""Revisions of each family in a record, so that a change of the tests is not reported as a change of torch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_amp import cli
from pytest_amp.record import Failure, Gap, Kind, Observation, Record, Value, Verdict, difference, write_record
from pytest_amp.run.revision import CHECKS, revision_of
from tests.architecture.test_imports import LAYERS
from tests.project import ON_CPU, ROOT, Project

TEST = "test_it::test_it"
OTHER = "test_it::test_other"


def package(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "test_it.py").write_text(text, encoding="utf-8")
    return folder


def test_revision_depends_on_code_and_not_on_comments(tmp_path: Path) -> None:
    """Each folder is read once in a process, so each state has a folder of its own."""
    plain = revision_of(package(tmp_path / "a", "x = 1\n"))
    assert plain == revision_of(package(tmp_path / "b", "# a reason\n\nx = 1  \n"))
    assert plain != revision_of(package(tmp_path / "c", "x = 2\n"))
    assert plain == revision_of(package(tmp_path / "g", '"""A docstring\n\nof two paragraphs."""\nx = 1\n'))
    assert plain != revision_of(package(tmp_path / "h", 'y = """No docstring."""\nx = 1\n'))
    data = package(tmp_path / "d", "x = 1\n")
    (data / "measured.txt").write_text("1", encoding="utf-8")
    assert revision_of(data) == plain
    (data / "rules.toml").write_text("a = 1", encoding="utf-8")
    assert revision_of(package(tmp_path / "e", "from pytest_amp.numerics import x\n")) != revision_of(
        package(tmp_path / "f", "from pytest_amp.semantics import x\n")
    )
    assert len(plain) == 8


def test_revisions_include_every_check() -> None:
    assert LAYERS["checks"] == CHECKS
    assert len({revision_of(folder) for folder in (ROOT / "suites").iterdir() if folder.is_dir()}) > 10


def record(revision: str | None, rule: str, error: float) -> Record:
    observations = (
        Observation("rules/cpu/bf16/mm", Kind.RULE, rule, test=TEST),
        Observation("rules/cpu/bf16/bmm", Kind.RULE, "fp32", test=TEST),
        Observation("gradients/cpu/bf16/x", Kind.ERROR, error, test=OTHER),
    )
    ran = {"cpu-bf16 rules": (TEST,), "cpu-bf16 gradients": (OTHER,)}
    provenance: dict[str, Value] = {"torch": "2.13.0", "seed": 0}
    if revision is not None:
        provenance["revisions"] = {"rules": revision, "gradients": "0" * 8}
    return Record(observations, provenance, ran=ran)


OLD, NEW = record("a" * 8, "fp32", 0.01), record("b" * 8, "none", 0.03)
LINE = (
    "the tests of these families changed between the records, so that changed observations (1) cannot be "
    "attributed to torch: rules 1 (aaaaaaaa -> bbbbbbbb); record the earlier torch with the later tests"
)


def test_change_with_another_revision_is_reported_as_uncompared() -> None:
    actual = difference(OLD, NEW)
    assert [observation.key for observation in actual.observations] == ["gradients/cpu/bf16/x"]
    assert [(row.key, row.verdict) for row in actual.incomparable] == [("rules/cpu/bf16/mm", Verdict.CHANGED)]
    assert actual.gaps == {Gap.UNCOMPARED: (LINE,)}
    assert list(actual.provenance()) == []


def test_equal_or_unknown_revisions_are_compared() -> None:
    for old in (record("b" * 8, "fp32", 0.01), record(None, "fp32", 0.01)):
        actual = difference(old, NEW)
        assert [observation.key for observation in actual.observations] == ["gradients/cpu/bf16/x", "rules/cpu/bf16/mm"]
        assert (actual.incomparable, actual.gaps) == ((), {})


def test_another_revision_without_changes_is_no_gap() -> None:
    assert difference(OLD, replace(OLD, provenance=NEW.provenance)).gaps == {}


def test_failed_test_is_reported_with_any_revision() -> None:
    failed = replace(NEW, failures=(Failure("rules/cpu/bf16/test_it::test_it[mm]", "AmpFailure: no"),))
    assert [row.verdict for row in difference(OLD, failed).of(Verdict.FAILED)] == [Verdict.FAILED]


@pytest.mark.parametrize("form", ["text", "md", "html", "json"])
def test_diff_command_fails_on_uncompared_changes(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / "old.json"), str(tmp_path / "new.json")]
    moved = replace(NEW, observations=(NEW.observations[0], *OLD.observations[1:]))
    for file, content in zip(files, (OLD, moved), strict=True):
        write_record(content, Path(file), replace=False)
    assert cli.main(["diff", *files, f"--format={form}"]) == 1
    out = capsys.readouterr().out
    assert out.replace("-&gt;", "->").count(LINE) == 1
    assert cli.main(["diff", *files, "--fail-on=-uncompared"]) == 0
    if form == "json":
        assert [row["key"] for row in json.loads(out)["incomparable"]] == ["rules/cpu/bf16/mm"]


FAMILY = """
import pytest

pytestmark = pytest.mark.amp(fake=True)


def test_it(amp):
    amp.observe("x", VALUE, kind="state")
"""


def suite(project: Project, value: int) -> None:
    project.file(
        "own/__init__.py",
        "from pytest_amp.devices import DeviceKind\nfrom pytest_amp.families import Family\n\n"
        'FAMILY = Family("own", kinds=frozenset(DeviceKind))\n',
    )
    project.file("own/test_it.py", FAMILY.replace("VALUE", str(value)))


def test_run_records_revisions_and_reports_changed_ones(project: Project) -> None:
    suite(project, 1)
    assert project.apart(*ON_CPU, "--amp-record=old.json", "own").ret == 0
    (revision,) = project.record("old.json")["provenance"]["revisions"].values()
    assert revision == revision_of(project.path / "own")
    suite(project, 2)
    result = project.apart(*ON_CPU, "--amp-baseline=old.json", "--amp-report=md:page.md", "own")
    assert result.ret == 1
    result.stdout.fnmatch_lines([
        f"  likely    the tests of own changed since the baseline was recorded (revision {revision} -> *",
        f"          tests changed since the baseline was recorded: own ({revision} -> *",
    ])  # fmt: skip
    assert "tests changed since the baseline was recorded: own" in (project.path / "page.md").read_text("utf-8")


def test_run_on_a_fake_device_records_its_host(project: Project) -> None:
    suite(project, 1)
    result = project.apart("--amp-device=fake:cuda", "--amp-dtype=bf16", "--amp-record=new.json", "own", "-n", "1")
    assert result.ret == 0
    provenance = project.record("new.json")["provenance"]
    assert {"machine", "cpu_capability", "mkldnn", "onednn"} == provenance["host"].keys()
    assert provenance["devices"] == {"fake-cuda": {}}
