"""--amp-accept: the baseline takes the observations of passing tests, limited to those that ran, and lists changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from pytest_amp.record import lock
from tests.project import ON_CPU, Project, red, refused, summary

ACCEPTING = (*ON_CPU, "--amp-baseline=old.json", "--amp-accept")
TESTS = """
def test_one(amp):
    amp.observe('one', {one!r}, kind='rule')


def test_two(amp):
    amp.observe('two', {two!r}, kind='rule')
"""


@pytest.fixture
def with_baseline(project: Project) -> Project:
    project.write(test_it=TESTS.format(one="a", two="a") + "    amp.observe('lost', 1, kind='count')\n")
    assert project.here(*ON_CPU, "--amp-record=old.json").ret == 0
    project.write(test_it=TESTS.format(one="b", two="b"))
    return project


def test_complete_run_replaces_the_baseline(with_baseline: Project) -> None:
    assert with_baseline.here(*ON_CPU, "--amp-baseline=old.json").ret == 1
    result = with_baseline.here(*ACCEPTING)
    assert result.ret == 0
    lines = summary(result)
    assert "changed   project/cpu/bf16/one: a -> b" in lines
    assert "gone      project/cpu/bf16/lost: was 1" in lines
    assert f"accepted  3 differences are now in {with_baseline.path / 'old.json'}" in lines
    assert with_baseline.observed("old.json") == {"project/cpu/bf16/one": "b", "project/cpu/bf16/two": "b"}
    record = with_baseline.record("old.json")
    assert "--amp-accept" in record["provenance"]["command"]
    assert "accepted" not in record["provenance"]
    assert with_baseline.here(*ON_CPU, "--amp-baseline=old.json", "--amp-strict").ret == 0


@pytest.mark.parametrize("workers", ["0", "1"])
def test_observations_of_tests_that_did_not_run_stay(with_baseline: Project, workers: str) -> None:
    before = with_baseline.record("old.json")["provenance"]
    result = with_baseline.apart(*ACCEPTING, "-k", "one", "-n", workers)
    assert result.ret == 0
    assert with_baseline.observed("old.json") == {
        "project/cpu/bf16/lost": 1,
        "project/cpu/bf16/one": "b",
        "project/cpu/bf16/two": "a",
    }
    provenance = with_baseline.record("old.json")["provenance"]
    assert f"accepted  1 difference is now in {with_baseline.path / 'old.json'}" in summary(result)
    (entry,) = provenance.pop("accepted")
    assert provenance == before
    assert entry["keys"] == ["project/cpu/bf16/one"]
    again = with_baseline.here(*ACCEPTING, "-k", "two")
    assert again.ret == 0
    keys = [entry["keys"] for entry in with_baseline.record("old.json")["provenance"]["accepted"]]
    assert keys == [["project/cpu/bf16/one"], ["project/cpu/bf16/two", "project/cpu/bf16/lost"]]


def test_observations_of_failed_tests_are_not_accepted(with_baseline: Project) -> None:
    with_baseline.write(test_it=TESTS.format(one="b", two="b") + "    assert False\n")
    result = with_baseline.here(*ACCEPTING)
    assert result.ret == 1
    assert with_baseline.observed("old.json") == {
        "project/cpu/bf16/lost": 1,
        "project/cpu/bf16/one": "b",
        "project/cpu/bf16/two": "a",
    }


def test_interrupted_run_leaves_the_baseline_unchanged(with_baseline: Project) -> None:
    before = (with_baseline.path / "old.json").read_bytes()
    with_baseline.write(test_it=TESTS.format(one="b", two="b") + "    raise KeyboardInterrupt\n")
    assert with_baseline.apart(*ACCEPTING).ret == 2
    assert (with_baseline.path / "old.json").read_bytes() == before


def test_option_without_a_baseline_is_refused(project: Project) -> None:
    project.write(test_it="def test_it(amp):\n    pass")
    problem = "no baseline to change; expected --amp-baseline=FILE, too"
    assert refused(project.here(*ON_CPU, "--amp-accept")) == f"--amp-accept (command line): {problem}"
    missing = ("--amp-baseline=nowhere.json", "--amp-allow-missing=baseline", "--amp-accept")
    assert refused(project.here(*ON_CPU, *missing)) == f"--amp-accept (command line): {problem}"
    project.file("pytest.ini", "[pytest]\namp_accept = true\n")
    assert refused(project.here(*ON_CPU)) == f"amp_accept (pytest.ini): {problem}"


def test_accepted_baseline_has_no_verdicts(with_baseline: Project) -> None:
    assert with_baseline.here(*ACCEPTING).ret == 0
    observations = with_baseline.observations("old.json")
    assert observations
    assert not any({"baseline", "verdict"} & observation.keys() for observation in observations)
    assert with_baseline.record("old.json")["complete"] is True


def test_accepted_baseline_updates_tests_that_ran_and_failed(project: Project) -> None:
    """Retain the lists of tests that ran whole and that failed, which later comparisons need."""
    source = "import pytest\n\n\n@pytest.mark.parametrize('n', [0, 1])\ndef test_it(amp, n):\n"
    other = "\n\ndef test_other(amp):\n    amp.observe('other', 1, kind='count')\n    assert {}\n"
    observed = "    amp.observe(f'x{n}', VALUE, kind='count')\n"
    arguments = ("--amp-device=cpu", "--amp-dtype=bf16")
    project.write(test_it=f"VALUE = 1\n{source}{observed}{other.format('False')}")
    assert project.here(*arguments, "--amp-record=old.json").ret == 1
    before = project.record("old.json")
    assert before["ran"] == {"cpu-bf16 project": ["test_it::test_it"]}
    assert [failure["key"] for failure in before["failures"]] == ["project/cpu/bf16/test_it::test_other"]
    project.write(test_it=f"VALUE = 2\n{source}{observed}{other.format('True')}")
    assert project.here(*arguments, "--amp-baseline=old.json", "--amp-accept", "-k", "test_it and 0").ret == 0
    part = project.record("old.json")
    assert (part["ran"], part["failures"]) == (before["ran"], before["failures"])
    assert project.here(*arguments, "--amp-baseline=old.json", "--amp-accept", "-k", "test_other").ret == 0
    whole = project.record("old.json")
    assert (whole["ran"], whole["failures"]) == ({"cpu-bf16 project": ["test_it::test_it", "test_it::test_other"]}, [])


TOGETHER = """
import time
from pathlib import Path


def test_{name}(amp):
    amp.observe({name!r}, 'b', kind='rule')
    Path({name!r}).touch()
    until = time.monotonic() + 60
    while not Path({other!r}).exists() and time.monotonic() < until:
        time.sleep(0.01)
"""


def test_simultaneous_runs_both_change_the_baseline(with_baseline: Project) -> None:
    """Run two processes that both read the baseline before either changes it."""
    names = {"one": "two", "two": "one"}
    with_baseline.write(**{f"test_{name}": TOGETHER.format(name=name, other=other) for name, other in names.items()})
    with ThreadPoolExecutor(2) as pool:
        results = [*pool.map(lambda name: with_baseline.apart(*ACCEPTING, f"test_{name}.py"), names)]
    assert [result.ret for result in results] == [0, 0]
    assert with_baseline.observed("old.json") == {
        "project/cpu/bf16/lost": 1,
        "project/cpu/bf16/one": "b",
        "project/cpu/bf16/two": "b",
    }
    accepted = with_baseline.record("old.json")["provenance"]["accepted"]
    assert sorted(entry["keys"] for entry in accepted) == [["project/cpu/bf16/one"], ["project/cpu/bf16/two"]]


def test_baseline_locked_by_another_process_is_reported(
    with_baseline: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "PATIENCE", 0.1)
    left = with_baseline.file(".old.json.lock", "")
    before = (with_baseline.path / "old.json").read_bytes()
    result = with_baseline.here(*ACCEPTING)
    assert result.ret == 1
    (line,) = red(result)
    assert line.startswith(f"not written: {with_baseline.path / 'old.json'}: another process has been changing it")
    assert ".old.json.lock" in line
    assert (with_baseline.path / "old.json").read_bytes() == before
    left.unlink()
    assert with_baseline.here(*ACCEPTING).ret == 0
