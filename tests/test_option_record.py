"""--amp-record, and the content of the file."""

from __future__ import annotations

import os

import pytest

from pytest_amp.record import SCHEMA, read_record
from tests.project import ON_CPU, Project, red, refused

TEST = """
import pytest


@pytest.mark.parametrize("size", [1, 2])
def test_it(amp, size):
    amp.observe(f"products/{size}", "bfloat16", kind="dtype")
    amp.observe(f"error/{size}", size / 1000, kind="error", unit="relative", allowed=0.25)
"""
RED = """
def test_red(amp):
    amp.observe("before the end", 1, kind="count")
    assert amp.precision.name != "bf16"
"""


def test_record_has_observations_and_provenance(project: Project) -> None:
    project.write(test_it=TEST)
    result = project.here(*ON_CPU, "--amp-record=new.json", "--amp-seed=7")
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"wrote     {project.path / 'new.json'}"])
    assert project.observed("new.json") == {
        "project/cpu/bf16/error/1": 0.001,
        "project/cpu/bf16/error/2": 0.002,
        "project/cpu/bf16/products/1": "bfloat16",
        "project/cpu/bf16/products/2": "bfloat16",
    }
    data = project.record("new.json")
    assert project.observations("new.json")[2] == {
        "key": "project/cpu/bf16/error/1",
        "kind": "error",
        "value": 0.001,
        "unit": "relative",
        "allowed": 0.25,
        "test": "test_it::test_it",
    }
    assert (data["schema"], data["complete"]) == (SCHEMA, True)
    assert data["summary"] == {"cpu-bf16 project": {"passed": 2}}
    provenance = data["provenance"]
    import torch

    assert (provenance["torch"], provenance["seed"]) == (torch.__version__, 7)
    capability = torch.backends.cpu.get_cpu_capability()
    assert provenance["devices"]["cpu"]["cpu_capability"] == provenance["cpu_capability"] == capability
    assert "--amp-seed=7" in provenance["command"]


@pytest.mark.parametrize("name", ["taken.json", "folder"])
def test_existing_file_is_refused(project: Project, name: str) -> None:
    project.write(test_it=TEST)
    (project.path / "folder").mkdir()
    existing = project.file("taken.json", "mine")
    line = refused(project.here(*ON_CPU, f"--amp-record={name}"))
    assert line.startswith(f"--amp-record (command line): {str(project.path / name)!r} ")
    assert existing.read_text(encoding="utf-8") == "mine"


@pytest.mark.skipif(os.name != "posix", reason="links are POSIX's")
def test_dangling_link_is_refused_before_the_run(project: Project) -> None:
    """Refuse the link at the start: the record could not be written at the end of the run."""
    (project.path / "new.json").symlink_to(project.path / "later.json")
    assert "new.json' exists already" in refused(project.here("--amp-record=new.json"))
    (project.path / "round.json").symlink_to(project.path / "round.json")
    assert "round.json" in refused(project.here("--amp-record=round.json"))


@pytest.mark.skipif(os.name != "posix", reason="links are POSIX's")
def test_report_is_written_to_the_target_of_its_link(project: Project) -> None:
    project.write(test_it="def test_it(amp):\n    pass")
    (project.path / "page.md").symlink_to(project.path / "pages" / "today.md")
    assert "cannot be written" in refused(project.here(*ON_CPU, "--amp-report=md:page.md"))
    (project.path / "pages").mkdir()
    assert project.here(*ON_CPU, "--amp-report=md:page.md").ret == 0
    assert (project.path / "pages" / "today.md").is_file()


def test_file_created_during_the_run_is_not_overwritten(project: Project) -> None:
    project.write(test_it="def test_it(amp):\n    open('new.json', 'x').write('mine')")
    result = project.here(*ON_CPU, "--amp-record=new.json")
    result.assert_outcomes(passed=1)
    assert red(result) == [
        f"not written: {project.path / 'new.json'}: exists already, and a record is never overwritten"
    ]
    assert (result.ret, (project.path / "new.json").read_text(encoding="utf-8")) == (1, "mine")


def test_missing_folder_is_refused(project: Project) -> None:
    line = refused(project.here("--amp-record=nowhere/new.json"))
    assert line.endswith("cannot be written; expected a regular file in a folder that exists")


def test_read_only_folder_is_refused_before_the_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate permissions and read-only disks, which do not restrict root, or cannot be set up everywhere."""
    monkeypatch.setattr(os, "access", lambda path, _mode: str(path) != str(project.path))
    line = refused(project.here("--amp-record=new.json"))
    assert line.endswith("new.json' cannot be written; expected a file in a folder in which files may be made")


def test_pipe_is_refused_and_not_replaced(project: Project) -> None:
    os.mkfifo(project.path / "pipe")
    line = refused(project.here("--amp-record=pipe"))
    assert line.endswith("pipe' cannot be written; expected a regular file in a folder that exists")
    assert (project.path / "pipe").is_fifo()


def test_red_run_is_recorded_with_its_failures(project: Project) -> None:
    project.write(test_it=TEST, test_red=RED)
    assert project.here(*ON_CPU, "--amp-record=red.json").ret == 1
    assert project.observed("red.json")["project/cpu/bf16/before the end"] == 1
    assert project.record("red.json")["summary"] == {"cpu-bf16 project": {"failed": 1, "passed": 2}}


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("def test_z(amp):\n    raise KeyboardInterrupt", 2),
        ("import pytest\n\n\ndef test_z(amp):\n    pytest.exit('enough', returncode=3)", 3),
        ("import pytest\n\n\ndef test_z(amp):\n    pytest.skip('nothing')", 0),
    ],
)
def test_interrupted_run_is_recorded_as_incomplete(project: Project, ending: str, status: int) -> None:
    project.write(test_it=TEST, test_z=ending)
    result = project.apart(*ON_CPU, "--amp-record=new.json")
    assert result.ret == status
    assert project.observed("new.json")["project/cpu/bf16/products/1"] == "bfloat16"
    assert project.record("new.json")["complete"] is (status == 0)


def test_run_with_only_skips_is_recorded_as_incomplete(project: Project) -> None:
    project.write(test_it="import pytest\n\n\ndef test_it(amp):\n    pytest.skip('nothing')")
    assert project.here(*ON_CPU, "--amp-record=new.json").ret == 1
    assert project.record("new.json")["complete"] is False


def test_run_without_mixed_precision_writes_empty_records(project: Project) -> None:
    project.write(test_plain="def test_plain(): pass")
    result = project.here("--amp-record=new.json", "--amp-report=json:report.json")
    assert (result.ret, project.observed("new.json"), project.observed("report.json")) == (0, {}, {})


@pytest.mark.parametrize(
    "option",
    ["--collect-only", "--setup-plan", "--setup-only", "--fixtures", "--fixtures-per-test", "--cache-show"],
)
def test_run_that_executes_no_test_writes_no_record(project: Project, option: str) -> None:
    project.write(test_it=TEST)
    result = project.here(*ON_CPU, "--amp-record=new.json", option)
    assert (result.ret, (project.path / "new.json").exists()) == (0, False)


def test_record_of_workers_equals_that_of_one_process(project: Project) -> None:
    project.write(test_it=TEST, test_red=RED)
    assert project.here("--amp-device=cpu", "--amp-record=alone.json").ret == 1
    assert project.apart("--amp-device=cpu", "--amp-record=together.json", "-n", "2").ret == 1
    alone, together = read_record(project.path / "alone.json"), read_record(project.path / "together.json")
    assert set(alone.observations) == set(together.observations)
    assert len(alone.observations) == 10
    assert (alone.summary, alone.ran, alone.failures) == (together.summary, together.ran, together.failures)
    assert [failure.key for failure in alone.failures] == ["project/cpu/bf16/test_red::test_red"]
    assert alone.ran == {
        "cpu-bf16 project": ("test_it::test_it",),
        "cpu-fp16 project": ("test_it::test_it", "test_red::test_red"),
    }
    ignored = {"command", "date"}
    assert {k: v for k, v in alone.provenance.items() if k not in ignored} == {
        k: v for k, v in together.provenance.items() if k not in ignored
    }


def test_records_of_two_runs_differ_in_provenance_alone(project: Project) -> None:
    project.write(test_it=TEST)
    for name in ("one.json", "two.json"):
        assert project.here(*ON_CPU, f"--amp-record={name}").ret == 0
    one, two = (
        (project.path / name).read_text(encoding="utf-8").partition('"summary"')[2] for name in ("one.json", "two.json")
    )
    assert one == two != ""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_key_observed_by_two_tests_is_red(project: Project, workers: str) -> None:
    """Otherwise one of two observations with the same key would be lost."""
    project.write(
        test_it="import pytest\n\n\n@pytest.mark.parametrize('size', [1, 2])\n"
        "def test_it(amp, size):\n    amp.observe('products', size, kind='count')"
    )
    result = project.run(*ON_CPU, "-n", workers, "--amp-record=new.json")
    result.assert_outcomes(passed=2)
    (line,) = red(result)
    assert line.startswith("project/cpu/bf16/products: observed by test_it.py::test_it[cpu-bf16-")
    assert (result.ret, project.record("new.json")["complete"]) == (1, False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "amp.observe('x', 1, kind='count'); amp.observe('x', 2, kind='count')",
            "*project/cpu/bf16/x is observed twice*",
        ),
        (
            "import torch; amp.observe('x', torch.ones(1), kind='count')",
            "*project/cpu/bf16/x: a Tensor is not plain JSON*",
        ),
        ("amp.observe('x', (1, 2), kind='state')", "*project/cpu/bf16/x: a tuple is not plain JSON*"),
        ("amp.observe('x', {1: 2}, kind='state')", "*project/cpu/bf16/x: the key 1 is not a string*"),
        ("amp.observe('x', [amp.dtype], kind='state')", "*project/cpu/bf16/x: a dtype is not plain JSON*"),
        (
            "amp.observe('x', 1, kind='number')",
            "*AmpUsageError: kind='number' is not a kind of observation; expected rule, *",
        ),
        ("amp.observe('', 1, kind='count')", "*AmpUsageError: 'project/cpu/bf16/' is not an observation key*"),
        ("amp.observe('two\\nlines', 1, kind='count')", "*is not an observation key*"),
    ],
)
def test_invalid_observation_is_refused(project: Project, call: str, message: str) -> None:
    project.write(test_it=f"def test_it(amp):\n    {call}")
    result = project.here(*ON_CPU)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([message])


def test_keys_have_no_device_index_and_no_path(project: Project) -> None:
    project.file("deep/down/test_it.py", "import pytest\n\n\n@pytest.mark.amp(fake=True)\ndef test_it(amp):\n    "
                 "amp.observe('x', 1, kind='count')\n")  # fmt: skip
    result = project.here("deep/down", "--amp-device=cpu,fake:xpu", "--amp-dtype=fp16", "--amp-record=new.json")
    assert result.ret == 0
    assert list(project.observed("new.json")) == ["project/cpu/fp16/x", "project/fake-xpu/fp16/x"]


@pytest.mark.parametrize(
    ("words", "status"), [(("no_such_folder",), 4), (("-k", "no_such_test"), 5), (("--pyargs", "no.such.package"), 4)]
)
def test_run_without_tests_writes_no_record(project: Project, words: tuple[str, ...], status: int) -> None:
    project.write(test_it=TEST)
    result = project.here(*ON_CPU, "--amp-record=new.json", *words)
    assert result.ret == status
    result.stdout.fnmatch_lines(["note      *new.json was not written: no test ran"])
    assert project.here(*ON_CPU, "--amp-record=new.json").ret == 0
    assert project.record("new.json")["complete"]
