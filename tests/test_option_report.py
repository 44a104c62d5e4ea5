"""--amp-report."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_amp.config import REPORTS
from pytest_amp.refusals import JOB_SUMMARY
from pytest_amp.report.markdown import CUT, LIMIT, append_to_job_summary
from tests.project import ON_CPU, Project, refused, summary

TEST = "def test_it(amp):\n    amp.observe('x', {value}, kind='count')\n"


def test_json_report_equals_the_record_and_replaces_its_file(project: Project) -> None:
    project.write(test_it=TEST.format(value=1))
    project.file("report.json", "of the last run")
    result = project.here(*ON_CPU, "--amp-report=json:report.json", "--amp-record=record.json")
    assert result.ret == 0
    assert project.observations("report.json") == project.observations("record.json")
    assert f"wrote     {project.path / 'report.json'}" in summary(result)


def test_option_accepts_lists_and_repetition(project: Project) -> None:
    project.write(test_it=TEST.format(value=1))
    names = ("one.json", "two.json", "three.json")
    result = project.here(*ON_CPU, "--amp-report=json:one.json,json:two.json", "--amp-report=json:three.json")
    assert result.ret == 0
    assert {str(project.observed(name)) for name in names} == {"{'project/cpu/bf16/x': 1}"}


def test_report_of_a_red_run_is_written(project: Project) -> None:
    project.write(test_it=TEST.format(value=1) + "    raise AssertionError\n")
    assert project.here(*ON_CPU, "--amp-report=json:report.json").ret == 1
    assert project.record("report.json")["summary"] == {"cpu-bf16 project": {"failed": 1}}


def test_report_that_cannot_be_written_is_red(project: Project) -> None:
    project.write(
        test_it="import shutil\n\n\ndef test_it(amp, request):\n    shutil.rmtree(request.config.rootpath / 'reports')"
    )
    (project.path / "reports").mkdir()
    result = project.here(*ON_CPU, "--amp-report=json:reports/report.json")
    result.assert_outcomes(passed=1)
    assert result.ret == 1
    assert any(line.startswith("RED       not written: ") for line in summary(result))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("nope:x", "'nope' is not a report format; expected json, md, html, github"),
        ("json", f"'json' names no file; expected {REPORTS}"),
        ("md:", f"'md:' names no file; expected {REPORTS}"),
        ("html:", f"'html:' names no file; expected {REPORTS}"),
        ("github:x", f"'github:x': github takes no file; expected {REPORTS}"),
        (
            "github",
            f"github is the page of a job of GitHub Actions, and {JOB_SUMMARY} names no file; expected {REPORTS}",
        ),
        ("json:x,", "'json:x,' has an empty report; expected a list with commas"),
        ("report.json", "'report.json' names a file and no format; expected json:report.json"),
        ("r.md", "'r.md' names a file and no format; expected md:r.md"),
        ("reports/r.html", "'reports/r.html' names a file and no format; expected html:reports/r.html"),
        ("r.txt", "'r.txt' is not a report format; expected json, md, html, github"),
    ],
)
def test_bad_value_is_refused(project: Project, monkeypatch: pytest.MonkeyPatch, value: str, problem: str) -> None:
    monkeypatch.delenv(JOB_SUMMARY, raising=False)
    assert refused(project.here(f"--amp-report={value}")) == f"--amp-report (command line): {problem}"


def test_missing_folder_is_refused(project: Project) -> None:
    line = refused(project.here("--amp-report=json:nowhere/report.json"))
    assert line.endswith("report.json' cannot be written; expected a regular file in a folder that exists")


def test_pipe_is_refused_and_not_replaced(project: Project) -> None:
    os.mkfifo(project.path / "pipe")
    line = refused(project.here("--amp-report=json:pipe"))
    assert line.endswith("pipe' cannot be written; expected a regular file in a folder that exists")
    assert (project.path / "pipe").is_fifo()


@pytest.mark.parametrize(
    "other", ["--amp-record=report.json", "--amp-report=json:folder/../report.json", "--amp-baseline=report.json"]
)
def test_file_with_two_uses_is_refused(project: Project, other: str) -> None:
    (project.path / "folder").mkdir()
    arguments = ["--amp-report=json:report.json", other, "--amp-allow-missing=baseline"]
    assert refused(project.here(*arguments)).endswith(", too; expected a file of its own")


MIXED = """
def test_green(amp):
    amp.observe('stays', 1, kind='count')
    amp.observe('moves', {value}, kind='error')


def test_red(amp):
    amp.observe('rule|x', {rule!r}, kind='rule')
    assert {rule!r} == 'fp32', 'not | the rule'
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_markdown_report_lists_results_and_changes(project: Project, workers: str) -> None:
    project.write(test_it=MIXED.format(value=1.0, rule="fp32"))
    assert project.here(*ON_CPU, "--amp-record=old.json", "--amp-report=md:page.md").ret == 0
    page = (project.path / "page.md").read_text(encoding="utf-8")
    assert page.startswith("### pytest-amp: green on torch ")
    assert "| cpu-bf16 | project | 2 passed |" in page
    assert "failed" not in page
    project.write(test_it=MIXED.format(value=0.1, rule="none"))
    arguments = ("--amp-baseline=old.json", "--amp-report=md:page.md", "-n", workers)
    assert project.apart(*ON_CPU, *arguments).ret == 1
    page = (project.path / "page.md").read_text(encoding="utf-8")
    assert page.startswith("### pytest-amp: red on torch ")
    assert "| cpu-bf16 | project | 1 failed, 1 passed |" in page
    assert "| `test_it.py::test_red[cpu-bf16]` | AmpFailure: rule\\|x on cpu-bf16 is no longer what the " in page
    assert "| `project/cpu/bf16/rule\\|x` | fp32 | none |" in page
    assert "| `project/cpu/bf16/moves` | 1 | 0.1 (0.1 times) |" in page
    assert page.index("**changed (1)**") < page.index("<details><summary>better (1)</summary>")


def test_markdown_report_has_the_reason_of_a_red_run_without_failures(project: Project) -> None:
    project.write(test_it="import pytest\n\n\ndef test_it(amp):\n    pytest.skip('none of it')\n")
    assert project.here(*ON_CPU, "--amp-report=md:page.md").ret == 1
    page = (project.path / "page.md").read_text(encoding="utf-8")
    assert page.startswith("### pytest-amp: red on torch ")
    assert "- **project on cpu-bf16: 1 selected, not one executed: none of it (1)**" in page


def test_github_report_is_appended_to_the_job_summary(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    summary_file = project.file("summary.md", "of an earlier step\n")
    monkeypatch.setenv(JOB_SUMMARY, str(summary_file))
    project.write(test_it=TEST.format(value=1))
    assert project.here(*ON_CPU, "--amp-report=github").ret == 0
    page = summary_file.read_text(encoding="utf-8")
    assert page.startswith("of an earlier step\n### pytest-amp: green on torch ")


@pytest.mark.parametrize("already", [0, LIMIT - 10_000, LIMIT + 10])
def test_long_job_summary_is_cut_at_a_line(tmp_path: Path, already: int) -> None:
    path = tmp_path / "summary.md"
    path.write_bytes(b"x" * already)
    append_to_job_summary("a line of the page: λ\n" * 100_000, path)
    data = path.read_bytes()[already:].decode("utf-8")
    assert data.endswith(CUT)
    assert set(data.removesuffix(CUT).splitlines()) <= {"a line of the page: λ"}
    assert path.stat().st_size <= max(LIMIT, already + len(CUT))
    small = tmp_path / "small.md"
    small.touch()
    append_to_job_summary("all of it", small)
    assert small.read_text(encoding="utf-8") == "all of it"
