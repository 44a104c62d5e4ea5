"""--amp-baseline: exact kinds and errors are compared, and a difference fails its test."""

from __future__ import annotations

import json

import pytest

from tests.project import ON_CPU, Project, red, refused, summary


def observing(value: str, kind: str = "rule") -> str:
    return f"def test_it(amp):\n    amp.observe('x', {value}, kind={kind!r})\n"


def recorded(project: Project, *arguments: str) -> None:
    result = project.here(*ON_CPU, "--amp-record=old.json", *arguments)
    assert result.ret == 0, result.outlines


def test_difference_fails_its_test(project: Project) -> None:
    project.write(test_it=observing("'fp32'"))
    recorded(project)
    project.write(test_it=observing("'promote'"))
    result = project.here(*ON_CPU, "--amp-baseline=old.json", "--amp-record=new.json")
    result.assert_outcomes(failed=1)
    import torch

    result.stdout.fnmatch_lines(
        [
            "AmpFailure: x on cpu-bf16 is no longer what the baseline has",
            f"  baseline  fp32 on torch {torch.__version__}",
            f"  now       promote on torch {torch.__version__}, *",
            "  likely *",
            "  rerun     pytest 'test_it.py::test_it[[]cpu-bf16[]]' --amp-device=cpu --amp-dtype=bf16 --amp-baseline=*",
            "  accept    the same command with --amp-accept",
        ]
    )
    lines = summary(result)
    assert any(line.endswith(": 0 same, 1 changed") for line in lines)
    assert "changed   project/cpu/bf16/x: fp32 -> promote" in lines
    (observation,) = project.observations("new.json")
    assert (observation["value"], observation["baseline"], observation["verdict"]) == ("promote", "fp32", "changed")
    assert result.ret == 1


@pytest.mark.parametrize(
    ("before", "now", "kind"),
    [
        ("1", "2", "count"),
        ("1", "True", "count"),
        ("1", "1.0", "count"),
        ("0.0", "-0.0", "state"),
        ("['a', 'b']", "['b', 'a']", "state"),
        ("{'a': 1}", "{'a': 2}", "state"),
        ("None", "'None'", "state"),
        ("'float32'", "'bfloat16'", "dtype"),
        ("float('nan')", "0.0", "state"),
    ],
)
def test_observations_of_exact_kinds_must_be_equal(project: Project, before: str, now: str, kind: str) -> None:
    project.write(test_it=observing(before, kind))
    recorded(project)
    assert project.here(*ON_CPU, "--amp-baseline=old.json").ret == 0
    project.write(test_it=observing(now, kind))
    result = project.here(*ON_CPU, "--amp-baseline=old.json")
    assert result.ret == 1
    result.assert_outcomes(failed=1)


def test_observation_of_another_kind_has_changed(project: Project) -> None:
    project.write(test_it=observing("1", "count"))
    recorded(project)
    project.write(test_it=observing("1", "ratio"))
    assert project.here(*ON_CPU, "--amp-baseline=old.json").ret == 1


@pytest.mark.parametrize("kind", ["ratio", "seconds", "bytes"])
def test_other_kinds_are_counted_as_only_recorded(project: Project, kind: str) -> None:
    project.write(test_it=observing("1.5", kind))
    recorded(project)
    project.write(test_it=observing("2.5", kind))
    result = project.here(*ON_CPU, "--amp-baseline=old.json")
    assert result.ret == 0
    assert any(line.endswith(": 0 same; 1 only recorded") for line in summary(result))


@pytest.mark.parametrize(
    ("now", "status", "says"),
    [
        ("1.4", 0, ": 1 same"),
        ("1.6", 1, ": 0 same, 1 regressed"),
        ("0.6", 0, ": 0 same, 1 improved"),
    ],
)
def test_larger_error_fails_its_test(project: Project, now: str, status: int, says: str) -> None:
    project.write(test_it=observing("1.0", "error"))
    recorded(project)
    project.write(test_it=observing(now, "error"))
    result = project.here(*ON_CPU, "--amp-baseline=old.json")
    assert result.ret == status
    assert any(says in line for line in summary(result))
    assert (f"regressed project/cpu/bf16/x: 1 -> {now}" in summary(result)) == (status == 1)


@pytest.mark.parametrize("strict", [True, False])
def test_error_of_another_seed_is_inconclusive(project: Project, strict: bool) -> None:  # noqa: FBT001
    project.write(test_it=observing("1.0", "error"))
    recorded(project)
    project.write(test_it=observing("2.0", "error"))
    result = project.here(*ON_CPU, "--amp-baseline=old.json", "--amp-seed=1", *["--amp-strict"] * strict)
    lines = summary(result)
    assert any(": 0 same, 1 inconclusive" in line for line in lines)
    assert lines.count("          seed 0 before, 1 now: numbers that moved are inconclusive") == 1
    assert red(result) == ["inconclusive: project/cpu/bf16/x"] * strict
    assert result.ret == int(strict)


def test_changes_of_several_tests_are_all_reported(project: Project) -> None:
    """Compare the observations of the other tests, although a difference ends its test."""
    source = "import pytest\n\n\n@pytest.mark.parametrize('n', range(3))\ndef test_it(amp, n):\n    "
    project.write(test_it=f"{source}amp.observe(f'x{{n}}', 1, kind='count')")
    recorded(project)
    project.write(test_it=f"{source}amp.observe(f'x{{n}}', 1 + n, kind='count')")
    result = project.apart(*ON_CPU, "--amp-baseline=old.json", "-n", "1")
    result.assert_outcomes(passed=1, failed=2)
    assert any(line.endswith(": 1 same, 2 changed") for line in summary(result))


GONE = """
import pytest


@pytest.mark.parametrize("n", range(3))
def test_many(amp, n):
    amp.observe(f"many/{n}", n, kind="count")


class TestA:
    def test_it(self, amp):
        amp.observe("a", 1, kind="count")


class TestB:
    def test_it(self, amp):
        amp.observe("b", 1, kind="count")
"""


@pytest.fixture
def with_baseline(project: Project) -> Project:
    """Return a project that has a baseline with five facts, in ``old.json``."""
    project.write(test_it=GONE)
    recorded(project)
    assert len(project.observed("old.json")) == 5
    return project


def compared(project: Project, *arguments: str) -> tuple[int, list[str]]:
    """Return the exit status, and the keys that are reported as gone."""
    result = project.here(*ON_CPU, "--amp-baseline=old.json", *arguments)
    return int(result.ret), [
        line.split()[1].removeprefix("project/cpu/bf16/").rstrip(":")
        for line in summary(result)
        if line.startswith("gone ")
    ]


def test_new_and_gone_observations_are_listed_and_green(with_baseline: Project) -> None:
    with_baseline.write(test_it=GONE.replace('f"many/{n}"', 'f"{n}/many"').replace('"b"', '"c"'))
    status, gone = compared(with_baseline)
    assert (status, gone) == (0, ["b", "many/0", "many/1", "many/2"])


def test_gone_observation_is_red_under_strict(with_baseline: Project) -> None:
    with_baseline.write(test_it=GONE.replace("range(3)", "range(2)"))
    result = with_baseline.here(*ON_CPU, "--amp-baseline=old.json", "--amp-strict")
    assert (result.ret, red(result)) == (1, ["gone from the baseline: project/cpu/bf16/many/2"])


@pytest.mark.parametrize(
    "arguments",
    [
        ("-k", "many and 0"),
        ("-k", "TestA"),
        ("--deselect", "test_it.py::test_many[cpu-bf16-2]"),
        ("test_it.py::test_many[cpu-bf16-1]",),
        ("test_it.py::TestA",),
        ("test_it.py::TestB::test_it", "test_it.py::test_many[cpu-bf16-0]"),
    ],
)
def test_observations_of_deselected_tests_are_not_gone(with_baseline: Project, arguments: tuple[str, ...]) -> None:
    """Select tests by -k, --deselect and node ids."""
    assert compared(with_baseline, "--amp-strict", *arguments) == (0, [])


def test_observations_of_another_dtype_are_not_gone(with_baseline: Project) -> None:
    result = with_baseline.here("--amp-device=cpu", "--amp-dtype=fp16", "--amp-baseline=old.json", "--amp-strict")
    assert [line for line in red(result) if "gone" in line] == []


@pytest.mark.parametrize("outcome", ["pytest.skip('not here')", "pytest.xfail('known')", "assert False"])
def test_observations_of_tests_that_did_not_pass_are_not_gone(with_baseline: Project, outcome: str) -> None:
    changed = GONE.replace("    amp.observe(f", f"    if n == 1:\n        {outcome}\n    amp.observe(f")
    with_baseline.write(test_it=changed)
    assert compared(with_baseline, "--amp-strict")[1] == []


def test_observations_of_tests_after_exitfirst_are_not_gone(with_baseline: Project) -> None:
    with_baseline.write(test_it=f"{GONE}\n\n\ndef test_a(amp):\n    assert False\n")
    # test_many's parameters run after test_a: explicit order, so that one of them runs before.
    with_baseline.write(
        conftest="def pytest_collection_modifyitems(items):\n"
        "    items.sort(key=lambda item: ['many[cpu-bf16-0', 'test_a', 'many', 'test_it'].index(next(\n"
        "        p for p in ['many[cpu-bf16-0', 'test_a', 'many', 'test_it'] if p in item.name)))"
    )
    status, gone = compared(with_baseline, "-x", "--amp-strict")
    assert (status, gone) == (1, [])


def test_last_failed_makes_no_observation_gone(with_baseline: Project) -> None:
    with_baseline.write(test_it=GONE.replace("    amp.observe(f", "    assert n != 1\n    amp.observe(f"))
    assert compared(with_baseline) == (1, [])
    with_baseline.write(test_it=GONE)
    result = with_baseline.here(*ON_CPU, "--amp-baseline=old.json", "--lf", "--amp-strict")
    result.assert_outcomes(passed=1)
    assert (result.ret, red(result)) == (0, [])


def test_gone_observation_is_red_under_workers(with_baseline: Project) -> None:
    with_baseline.write(test_it=GONE.replace("range(3)", "range(2)"))
    result = with_baseline.apart(*ON_CPU, "--amp-baseline=old.json", "--amp-strict", "-n", "2")
    assert (result.ret, red(result)) == (1, ["gone from the baseline: project/cpu/bf16/many/2"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON: "),
        ("{", "not JSON: "),
        ("[]", "not a record of this plugin"),
        ('{"schema": 4}', "not a record of this plugin"),
        ('{"schema": 5, "observations": []}', "schema 5 (a newer pytest-amp wrote it); this version reads 4"),
        ('{"schema": 4, "observations": [{}]}', "a table without rows: '{}'"),
        ('{"schema": 4, "observations": [], "complete": 1}', "provenance and summary must be objects, "),
    ],
)
@pytest.mark.parametrize("workers", ["0", "1"])
def test_malformed_baseline_is_refused(project: Project, text: str, problem: str, workers: str) -> None:
    path = project.file("old.json", text)
    project.write(test_it=observing("1", "count"))
    line = refused(project.here("--amp-baseline=old.json", "-n", workers))
    assert line.startswith(f"--amp-baseline (command line): {path}: {problem}")
    assert line.endswith("; expected a file that --amp-record wrote")


def test_missing_baseline_is_refused_unless_allowed(project: Project) -> None:
    project.write(test_it=observing("1", "count"))
    (project.path / "folder").mkdir()
    for name in ("old.json", "folder"):
        line = refused(project.here(f"--amp-baseline={name}"))
        assert line.startswith(f"--amp-baseline (command line): {str(project.path / name)!r} is not a file; expected ")
    result = project.here(*ON_CPU, "--amp-baseline=old.json", "--amp-allow-missing=baseline")
    assert result.ret == 0
    assert any(line.endswith("old.json is missing, as --amp-allow-missing allows") for line in summary(result))


def test_baseline_of_an_incomplete_run_is_reported(project: Project) -> None:
    project.write(test_it=observing("1", "count"))
    recorded(project)
    data = project.record("old.json")
    data["complete"] = False
    project.file("old.json", json.dumps(data))
    lines = summary(project.here(*ON_CPU, "--amp-baseline=old.json"))
    assert any("of a run that failed or was incomplete" in line for line in lines)


def test_baseline_file_is_not_overwritten(project: Project) -> None:
    project.write(test_it=observing("1", "count"))
    recorded(project)
    before = (project.path / "old.json").read_bytes()
    project.write(test_it=observing("2", "count"))
    assert project.here(*ON_CPU, "--amp-baseline=old.json", "--amp-record=new.json").ret == 1
    assert (project.path / "old.json").read_bytes() == before
    for option in ("--amp-report=json:old.json", "--amp-record=old.json"):
        refused(project.here(*ON_CPU, "--amp-baseline=old.json", option))
    assert (project.path / "old.json").read_bytes() == before


def test_baseline_without_observations_of_a_target_is_red(project: Project) -> None:
    """Fail, since a run that compares nothing would be green without a check."""
    project.write(test_it="def test_it(amp):\n    amp.observe('x', 1, kind='count')\n")
    assert project.here("--amp-device=cpu", "--amp-dtype=bf16", "--amp-record=bf16.json").ret == 0
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16,fp16", "--amp-baseline=bf16.json")
    assert (result.ret, red(result)) == (
        1,
        ["nothing on cpu-fp16 could be compared: the baseline has none of it (it has cpu-bf16)"],
    )


def test_baseline_of_other_checks_on_a_target_is_red(project: Project) -> None:
    project.write(test_it="def test_it(amp):\n    amp.observe('x', 1, kind='count')\n")
    recorded(project)
    project.write(test_it="def test_it(amp):\n    amp.observe('y', 1, kind='count')\n")
    result = project.here(*ON_CPU, "--amp-baseline=old.json")
    assert red(result) == [
        "nothing on cpu-bf16 could be compared: the baseline has none of these checks, but others on it"
    ]


def test_check_in_float32_without_a_baseline_is_new(project: Project) -> None:
    """Accept float32 as new, since the marker of a suite adds it without a user's selection."""
    project.write(test_it="def test_it(amp):\n    amp.observe('x', 1, kind='count')\n")
    recorded(project)
    marked = "import pytest\n\n\n@pytest.mark.amp(dtypes=['fp32'])\n"
    project.write(test_wide=f"{marked}def test_it(amp):\n    amp.observe('y', 1, kind='count')\n")
    result = project.here(*ON_CPU, "--amp-baseline=old.json")
    assert (result.ret, red(result)) == (0, [])
    assert any(line.startswith("new       project/cpu/fp32/y") for line in summary(result))


SWALLOWING = """
import contextlib


def test_it(amp):
    with contextlib.suppress(BaseException):
        amp.observe("caught", {value}, kind="count")
"""


def test_suppressed_difference_is_red(project: Project) -> None:
    project.write(test_it=SWALLOWING.format(value=1))
    assert project.here(*ON_CPU, "--amp-record=old.json").ret == 0
    assert project.here(*ON_CPU, "--amp-baseline=old.json").ret == 0
    project.write(test_it=SWALLOWING.format(value=2))
    result = project.here(*ON_CPU, "--amp-baseline=old.json")
    result.assert_outcomes(failed=1)
    assert (result.ret, red(result)) == (1, [])
    result.stdout.fnmatch_lines(["AmpFailure: caught on cpu-bf16 is no longer what the baseline has", "  lost in *"])
    assert project.here(*ON_CPU, "--amp-baseline=old.json", "--amp-accept").ret == 0
