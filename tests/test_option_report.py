"""--amp-report."""

from __future__ import annotations

import os

import pytest

from tests.project import Project, refused, summary

ON_CPU = ("--amp-device=cpu", "--amp-dtype=bf16")
TEST = "def test_it(amp):\n    amp.observe('x', {value}, kind='count')\n"


def test_the_report_is_the_record_and_replaces_its_file(project: Project) -> None:
    project.write(test_it=TEST.format(value=1))
    project.file("report.json", "of the last run")
    result = project.here(*ON_CPU, "--amp-report=json:report.json", "--amp-record=record.json")
    assert result.ret == 0
    assert project.record("report.json")["observations"] == project.record("record.json")["observations"]
    assert f"wrote     {project.path / 'report.json'}" in summary(result)


def test_reports_can_be_repeated(project: Project) -> None:
    project.write(test_it=TEST.format(value=1))
    names = ("one.json", "two.json", "three.json")
    result = project.here(*ON_CPU, "--amp-report=json:one.json,json:two.json", "--amp-report=json:three.json")
    assert result.ret == 0
    assert {str(project.observed(name)) for name in names} == {"{'project/cpu/bf16/x': 1}"}


def test_a_red_run_is_reported(project: Project) -> None:
    project.write(test_it=TEST.format(value=1) + "    raise AssertionError\n")
    assert project.here(*ON_CPU, "--amp-report=json:report.json").ret == 1
    assert project.record("report.json")["summary"] == {"cpu-bf16 project": {"failed": 1}}


def test_a_report_that_cannot_be_written_is_red(project: Project) -> None:
    project.write(
        test_it="import shutil\n\n\ndef test_it(amp, request):\n    shutil.rmtree(request.config.rootpath / 'reports')"
    )
    (project.path / "reports").mkdir()
    result = project.here(*ON_CPU, "--amp-report=json:reports/report.json")
    result.assert_outcomes(passed=1)
    assert result.ret == 1
    assert any(line.startswith("RED       not written: ") for line in summary(result))


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ("nope:x", "'nope' is not a report format; valid: json, md, html, github"),
        ("json", "'json' names no file; valid: json:PATH"),
        ("json:", "'json:' names no file; valid: json:PATH"),
        ("md:x", "the format 'md' is not available yet in this version; valid: json:PATH"),
        ("html:x", "the format 'html' is not available yet in this version; valid: json:PATH"),
        ("github", "the format 'github' is not available yet in this version; valid: json:PATH"),
        ("json:x,", "'json:x,' has an empty report; valid: a list with commas"),
        ("report.json", "'report.json' is not a report format; valid: json, md, html, github"),
    ],
)
def test_a_bad_value_is_refused(project: Project, asked: str, problem: str) -> None:
    assert refused(project.here(f"--amp-report={asked}")) == f"--amp-report (command line): {problem}"


def test_a_folder_must_exist(project: Project) -> None:
    line = refused(project.here("--amp-report=json:nowhere/report.json"))
    assert line.endswith("report.json' cannot be written; valid: a regular file in a folder that exists")


def test_a_pipe_is_refused_and_stays(project: Project) -> None:
    os.mkfifo(project.path / "pipe")
    line = refused(project.here("--amp-report=json:pipe"))
    assert line.endswith("pipe' cannot be written; valid: a regular file in a folder that exists")
    assert (project.path / "pipe").is_fifo()


@pytest.mark.parametrize(
    "other", ["--amp-record=report.json", "--amp-report=json:folder/../report.json", "--amp-baseline=report.json"]
)
def test_one_file_has_one_use(project: Project, other: str) -> None:
    (project.path / "folder").mkdir()
    arguments = ["--amp-report=json:report.json", other, "--amp-allow-missing=baseline"]
    assert refused(project.here(*arguments)).endswith(", too; valid: a file of its own")
