"""Renamed keys: records, baselines and --amp-known files with earlier keys are read under the present ones."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_amp import cli
from pytest_amp.record import (
    Failure,
    Gap,
    Kind,
    Observation,
    Record,
    Value,
    difference,
    keys_of,
    keys_of_test,
    read_record,
    table,
    trend,
    write_record,
)
from pytest_amp.record.file import dumps, parsed
from pytest_amp.record.renamed import Renaming, renamings, renamings_for, renewed
from tests.project import ON_CPU, ROOT, Project, red, summary

EXAMPLES = [ROOT / "docs" / "lab" / "examples" / f"torch-{release}.json.gz" for release in ("2.6", "2.13", "2.14")]


def raw(path: Path) -> dict[str, str]:
    """Return the keys of a file as it was written, with the test of each."""
    data = json.loads(gzip.decompress(path.read_bytes()))
    return {item["key"]: item["test"] for item in table.items(data["observations"])}  # type: ignore[misc]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_read_under_present_keys(path: Path) -> None:
    before, actual = raw(path), read_record(path)
    now = {observation.key: observation for observation in actual.observations}
    assert len(now) == len(before)
    moved = now.keys() - before.keys()
    assert len(moved) > 2000
    assert {key.partition("/")[0] for key in moved} == {"kernels"}
    assert {key for observation in actual.observations for key in keys_of(observation)} == before.keys() | moved
    # Nothing but the family changes in a key, and each is still that of the same test.
    rest = {key.partition("/")[2]: test for key, test in before.items()}
    assert all(rest[key.partition("/")[2]] == now[key].test for key in moved)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_matches_a_run_with_present_keys(path: Path) -> None:
    """Write the record as a run of today does: the same values under present keys, by a later version."""
    old = read_record(path)
    later = replace(old, provenance={**old.provenance, "plugin": "99.0"})
    actual = difference(old, parsed(dumps(later)))
    assert (actual.observations, actual.gaps, actual.not_run, actual.not_run_before) == ((), {}, 0, 0)
    assert actual.same > 10_000
    assert trend([old, later, old]).moved == ()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_record_without_the_long_tier_did_not_run_kernels(path: Path) -> None:
    old = read_record(path)
    assert old.ran is not None
    kernels = sum(observation.family == "kernels" for observation in old.observations)
    ordinary = replace(
        old,
        observations=tuple(observation for observation in old.observations if observation.family != "kernels"),
        ran={place: tests for place, tests in old.ran.items() if not place.endswith(" kernels")},
        failures=tuple(failure for failure in old.failures if failure.family != "kernels"),
    )
    actual = difference(old, ordinary)
    assert actual.observations == ()
    assert actual.gaps == {
        Gap.NOT_RUN: (
            (f"kernels: the new run did not run all tests of {kernels} facts of the old record (cpu-bf16, cpu-fp16)"),
        )
    }


def earlier(value: float, *, plugin: str | None = "0.1.0") -> Record:
    """Return a record with earlier keys: of a kernel's error, and of a test that stays."""
    test = "test_long_operators::test_sums_do_not_lose_with_length"
    provenance: dict[str, Value] = {
        "torch": "2.13.0",
        "plugin": plugin,
        "revisions": {"gradients": "a" * 8, "formats": "b" * 8},
    }
    return Record(
        (
            Observation("gradients/cpu/bf16/mean/256/result", Kind.ERROR, value, "noise", 1.25, test=test),
            Observation("gradients/cpu/bf16/mlp/output", Kind.ERROR, 0.1, "u", 1.0, test="test_zoo::test_step"),
            Observation("formats/fake-cuda/fp16/bits", Kind.COUNT, 7, test="test_accumulation::test_a"),
        ),
        provenance,
        ran={
            "cpu-bf16 gradients": (test, "test_zoo::test_step"),
            "fake-cuda-fp16 formats": ("test_accumulation::test_a",),
        },
        failures=(
            Failure("gradients/cpu/bf16/test_exact::test_it[topk, smallest]", "AmpFailure: no"),
            Failure("gradients/cpu/bf16/test_long_operators::test_losses_and_their_gradients[mse]", "AmpFailure: no"),
        ),
    )


def test_observations_failures_tests_and_revisions_are_renamed() -> None:
    actual = parsed(dumps(earlier(1.0)))
    assert actual.by_key().keys() == {
        "gradients/cpu/bf16/mlp/output",
        "kernels/cpu/bf16/mean/256/result",
        "kernels/fake-cuda/fp16/bits",
    }
    assert actual.ran == {
        "cpu-bf16 kernels": ("test_long_operators::test_sums_do_not_lose_with_length",),
        "cpu-bf16 gradients": ("test_zoo::test_step",),
        "fake-cuda-fp16 kernels": ("test_accumulation::test_a",),
    }
    assert [failure.key for failure in actual.failures] == [
        "kernels/cpu/bf16/test_exact::test_it[topk, smallest]",
        "gradients/cpu/bf16/test_long_losses::test_losses_and_their_gradients[mse]",
    ]
    assert actual.provenance["revisions"] == {
        "gradients": "a" * 8,
        "formats": "b" * 8,
        "kernels": f"{'a' * 8}+{'b' * 8}",
    }
    assert all(actual.ran_whole(observation) for observation in actual.observations)


@pytest.mark.parametrize("plugin", ["0.1.0", "0.0.9.dev3", None, "no version"])
def test_renamings_apply_to_their_version_and_earlier_ones(plugin: str | None) -> None:
    assert renamings_for(plugin) == renamings()
    assert parsed(dumps(earlier(1.0, plugin=plugin))).observations[0].family != "formats"


def test_record_of_a_later_version_is_unchanged() -> None:
    record = earlier(1.0, plugin="99.0")
    assert renamings_for("99.0") == ()
    assert parsed(dumps(record)).by_key() == record.by_key()


def test_observations_renamed_to_one_key_are_refused() -> None:
    record = earlier(1.0)
    twin = replace(record.observations[0], key="kernels/cpu/bf16/mean/256/result")
    with pytest.raises(ValueError, match="two observations with the key kernels/cpu/bf16/mean/256/result"):
        parsed(dumps(replace(record, observations=(*record.observations, twin))))


def test_observation_key_is_renamed_without_its_test() -> None:
    rows = (Renaming("formats/*/int8 round trip", "formats/*/int8/round trip", "0.1.0", "it has a name of two parts"),)
    observation = Observation("formats/cpu/bf16/int8 round trip", Kind.ERROR, 0.5, test="test_quantisation::test_it")
    (actual,) = renewed([observation], rows)
    assert actual == replace(observation, key="formats/cpu/bf16/int8/round trip")
    assert rows[0].restored(actual.key) == observation.key


def test_regression_under_an_earlier_key_is_red(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "old.json", tmp_path / "new.json"]
    write_record(earlier(1.0), files[0], replace=False)
    test = "test_long_operators::test_sums_do_not_lose_with_length"
    worse = Observation("kernels/cpu/bf16/mean/256/result", Kind.ERROR, 2.0, "noise", 1.25, test=test)
    write_record(Record((worse,), {"torch": "2.14.0"}, ran={"cpu-bf16 kernels": (test,)}), files[1], replace=False)
    assert cli.main(["diff", *map(str, files), "--format=json"]) == 1
    actual = json.loads(capsys.readouterr().out)
    assert [(row["key"], row["verdict"]) for row in actual["observations"]] == [
        ("kernels/cpu/bf16/mean/256/result", "regressed")
    ]


FAMILY = "from pytest_amp.families import Family\n\nFAMILY = Family('{}')\n"
TEST = "def test_it(amp):\n    amp.observe('x', {value}, kind='count')\n    assert {value} < 9\n"


@pytest.fixture
def kernels(project: Project) -> Project:
    """Return a project with a baseline that has the key of a test which has moved since."""
    project.file("gradients/__init__.py", FAMILY.format("gradients"))
    project.file("gradients/test_exact.py", TEST.format(value=1))
    assert project.apart(*ON_CPU, "--amp-record=old.json", "gradients").ret == 0
    assert "gradients/cpu/bf16/x" in project.observed("old.json")
    project.file("kernels/__init__.py", FAMILY.format("kernels"))
    project.file("kernels/test_exact.py", TEST.format(value=1))
    return project


def test_baseline_with_an_earlier_key_is_compared(kernels: Project) -> None:
    result = kernels.apart(*ON_CPU, "--amp-baseline=old.json", "--amp-strict", "kernels")
    assert result.ret == 0
    (line,) = [line for line in summary(result) if line.startswith("baseline")]
    assert line.endswith(": 1 same")


def test_changed_value_under_an_earlier_key_is_red(kernels: Project) -> None:
    kernels.file("kernels/test_exact.py", TEST.format(value=2))
    result = kernels.apart(*ON_CPU, "--amp-baseline=old.json", "kernels")
    assert result.ret == 1
    assert "changed   kernels/cpu/bf16/x: 1 -> 2" in summary(result)


def test_accepted_baseline_has_present_keys(kernels: Project) -> None:
    kernels.file("kernels/test_exact.py", TEST.format(value=2))
    result = kernels.apart(*ON_CPU, "--amp-baseline=old.json", "--amp-accept", "kernels")
    assert result.ret == 0
    assert kernels.observed("old.json") == {"kernels/cpu/bf16/x": 2}


@pytest.mark.parametrize("key", ["gradients/cpu/*/test_exact::test_it", "gradients/*/x", "gradients/cpu/*"])
def test_fault_with_an_earlier_key_is_known(kernels: Project, key: str) -> None:
    kernels.file("kernels/test_exact.py", TEST.format(value=9))
    kernels.file("known.toml", f'[[known]]\nkey = "{key}"\nreason = "we wait"\nreport = "owner/repo#1"\n')
    result = kernels.apart(*ON_CPU, "--amp-known=known.toml", "kernels")
    result.assert_outcomes(xfailed=1)
    assert red(result) == []
    assert result.ret == 0


def test_each_renaming_has_a_present_test_and_a_reason() -> None:
    suites = {
        f"{path.parent.name}/{path.stem}": path.read_text(encoding="utf-8")
        for path in (ROOT / "suites").glob("*/test_*.py")
    }
    assert renamings()
    for row in renamings():
        assert row.earlier.count("*") == row.present.count("*")
        assert row.reason
        assert row.since
        family, _, test = row.present.split("/")
        file, _, function = test.partition("::")
        source = suites[f"{family}/{file}"]
        assert f"def {function.removesuffix('*')}" in source, row


def test_no_present_test_has_an_earlier_key() -> None:
    names = [
        f"{path.parent.name}/cpu/bf16/{path.stem}::{line.partition('(')[0].removeprefix('def ')}"
        for path in (ROOT / "suites").glob("*/test_*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("def test_")
    ]
    assert len(names) > 500
    assert [name for name in names if any(row.renewed(name) != name for row in renamings())] == []
    moved = {key for name in names for key in keys_of_test(name)[1:]}
    assert len(moved) > 30
