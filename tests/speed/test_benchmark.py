"""Measured times reach pytest-benchmark exactly, and its switches keep their meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.project import Project, summary

TEST = """
    import pytest
    from tests.speed.simulated import check_simulated
"""


def make(project: Project, text: str) -> None:
    project.write(test_it=TEST + text)


def benchmarks(path: Path) -> list[dict[str, Any]]:
    actual: list[dict[str, Any]] = json.loads(path.read_text())["benchmarks"]
    return actual


SUMS = """
    def test_sums(request):
        check_simulated(request, candidate=[2.0] * 10 + [2.1] * 10)
"""


def test_table_and_file_have_the_measured_times(project: Project) -> None:
    make(project, SUMS)
    result = project.here("--benchmark-json=times.json", "--benchmark-save-data")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*benchmark 'sums over fp32, step': 1 tests*", "test_sums *2.0000*"])
    (entry,) = benchmarks(project.path / "times.json")
    facts = entry["extra_info"]["amp"]["sums over fp32, step"]
    assert entry["stats"]["data"] == facts["seconds"]["candidate"]
    assert set(entry["stats"]["data"]) == {2.0, 2.1}
    assert entry["stats"]["rounds"] == 96, "decided by the first look, and too wide until the last"
    assert facts["seconds"]["reference"] == [3.0] * 96
    assert (facts["verdict"], facts["floor"], facts["quads"]) == ("pass", 1.2, 48)
    assert facts["interval"][0] <= facts["ratio"] <= facts["interval"][1]
    assert entry["options"]["timer"].endswith("replayed")


def test_benchmark_mark_of_the_test_is_retained(project: Project) -> None:
    make(project, "\n    @pytest.mark.benchmark(group='mine', disable_gc=True)" + SUMS)
    project.here("--benchmark-json=times.json").assert_outcomes(passed=1)
    (entry,) = benchmarks(project.path / "times.json")
    assert (entry["group"], entry["options"]["disable_gc"]) == ("mine", True)
    assert entry["stats"]["max"] == 2.1


def test_benchmark_fixture_created_before_amp_is_refused(project: Project) -> None:
    make(project, SUMS.replace("(request)", "(benchmark, request)"))
    result = project.here()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ReplayError: the fixture `benchmark` was made before `amp`*"])


INSTALL = """
    import pytest
    from pytest_amp.speed.benchmark import install

    def pytest_collection_modifyitems(items):
        for item in items:
            install(item)
"""


def test_order_of_fixtures_does_not_matter_if_installed_at_collection(project: Project) -> None:
    project.write(conftest=INSTALL)
    make(project, "\n    @pytest.mark.usefixtures('benchmark')" + SUMS)
    project.here("--benchmark-json=times.json", "--benchmark-only").assert_outcomes(passed=1)
    (entry,) = benchmarks(project.path / "times.json")
    assert entry["stats"]["max"] == 2.1


def test_benchmark_of_the_test_itself_is_retained(project: Project) -> None:
    """The usual clock is installed until times are replayed; one test has one series of times."""
    project.write(conftest=INSTALL)
    make(
        project,
        """
    import time

    def test_both(benchmark, request):
        benchmark.pedantic(time.sleep, args=(1e-4,), rounds=3)
        check_simulated(request)
        assert benchmark.stats.stats.min >= 1e-4
        """,
    )
    project.here("--benchmark-json=times.json").assert_outcomes(passed=1)
    (entry,) = benchmarks(project.path / "times.json")
    assert entry["stats"]["rounds"] == 3
    assert entry["extra_info"]["amp"]["sums over fp32, step"]["verdict"] == "pass"


def test_first_of_two_checks_is_in_the_table(project: Project) -> None:
    make(
        project,
        """
    def test_two(request):
        check_simulated(request, candidate=2.0)
        check_simulated(request, candidate=1.0)
        """,
    )
    project.here("--benchmark-json=times.json").assert_outcomes(passed=1)
    (entry,) = benchmarks(project.path / "times.json")
    assert entry["stats"]["max"] == 2.0


SLOW = """
    def test_sums(request):
        check_simulated(request, candidate=4.0)
"""


@pytest.mark.parametrize("switch", ["--benchmark-enable", "--benchmark-disable", "-pno:benchmark", "-n2"])
def test_verdict_does_not_depend_on_benchmark_options(project: Project, switch: str) -> None:
    make(project, SUMS + SLOW.replace("test_sums", "test_slow_sums"))
    result = project.here(switch, "-W", "error", "-W", "ignore:Benchmarks are automatically disabled")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["*AmpFailure: sums under bf16 autocast is 0.75 times as fast as in IEEE fp32, in step time"]
    )


def test_failed_check_is_in_the_file(project: Project) -> None:
    make(project, SLOW)
    project.here("--benchmark-json=times.json").assert_outcomes(failed=1)
    (entry,) = benchmarks(project.path / "times.json")
    assert entry["extra_info"]["amp"]["sums over fp32, step"]["verdict"] == "fail"


def test_benchmark_skip_option_skips_the_check(project: Project) -> None:
    make(project, SLOW)
    project.here("--benchmark-skip").assert_outcomes(skipped=1)


def test_cprofile_option_is_supported(project: Project) -> None:
    make(project, SUMS)
    project.here("--benchmark-cprofile=tottime").assert_outcomes(passed=1)


def test_rows_are_grouped_by_timed_work(project: Project) -> None:
    """Group the same work in several dtypes, unless the test has a mark with another group."""
    make(project, SUMS + SUMS.replace("test_sums", "test_sums_again"))
    result = project.here("--benchmark-json=times.json")
    result.stdout.fnmatch_lines(["*benchmark 'sums over fp32, step': 2 tests*"])
    assert [entry["group"] for entry in benchmarks(project.path / "times.json")] == ["sums over fp32, step"] * 2


def test_runs_are_compared_by_their_event_times(project: Project) -> None:
    make(project, SUMS)
    project.here("--benchmark-autosave").assert_outcomes(passed=1)
    result = project.here("--benchmark-compare")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*2 tests*", "test_sums (0001_*2.0000*", "test_sums (NOW)*2.0000*"])


def test_times_of_another_torch_or_card_are_compared_with_a_note(project: Project) -> None:
    """The facts behind the times are known once the run has a device, later than pytest-benchmark asks: no warning."""
    project.write(
        test_it="""
def test_it(amp):
    amp.check_speedup(lambda: lambda: 1, versus="fp32", floor=0, name="nothing", seconds=0.3)
"""
    )
    retained = (
        project.path.parent / "kept"
    )  # outside of the current folder, in which pytest-benchmark's warning would fail
    options = ("--amp-device=cpu", "--amp-dtype=bf16", "--amp-speed=report", f"--benchmark-storage=file://{retained}")
    project.here(*options, "--benchmark-autosave").assert_outcomes(passed=1)
    same = project.here(*options, "--benchmark-compare")
    same.assert_outcomes(passed=1)
    same.stdout.fnmatch_lines(["*2 tests*"])
    assert "machine_info is different" not in same.stdout.str() + same.stderr.str()
    assert not [line for line in summary(same) if line.startswith("note")]
    (file,) = retained.rglob("*.json")
    data = json.loads(file.read_text(encoding="utf-8"))
    data["machine_info"]["amp"]["torch"] = "2.0.0"
    data["machine_info"]["amp"]["devices"]["cpu"]["cpu_capability"] = "VAX"
    file.write_text(json.dumps(data), encoding="utf-8")
    notes = [line for line in summary(project.here(*options, "--benchmark-compare")) if line.startswith("note")]
    assert len(notes) == 1
    assert "times from elsewhere: torch 2.0.0 (now 2." in notes[0]
    assert "cpu cpu_capability VAX (now " in notes[0]


def test_histogram_is_written(project: Project) -> None:
    pytest.importorskip("pygal", reason="pytest-benchmark draws with pygal and pygaljs")
    make(project, SUMS)
    project.here("--benchmark-histogram=times").assert_outcomes(passed=1)
    assert list(project.path.glob("times*.svg"))


def test_file_has_the_conditions_of_the_times(project: Project) -> None:
    project.write(
        test_it="""
import torch

def test_it(amp):
    amp.check_speedup(lambda: lambda: torch.ones(8).sum(), versus="fp32", floor=0, name="sum", seconds=0.3)
"""
    )
    options = ("--amp-device=cpu", "--amp-dtype=bf16", "--amp-speed=report", "--benchmark-json=times.json")
    project.here(*options).assert_outcomes(passed=1)
    data = json.loads((project.path / "times.json").read_text(encoding="utf-8"))
    machine = data["machine_info"]["amp"]
    assert machine["torch"]
    assert machine["devices"]["cpu"]["cpu_capability"]
    (facts,) = data["benchmarks"][0]["extra_info"]["amp"].values()
    assert (facts["work"], facts["kind"], facts["over"], facts["precision"]) == ("sum", "step", "fp32", "bf16")
    assert len(facts["seconds"]["reference"]) == len(facts["seconds"]["candidate"]) == 2 * facts["quads"]
