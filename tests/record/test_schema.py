"""Written files follow docs/reference/record.schema.json, and files of earlier schemas are read."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_amp.record import (
    SCHEMA,
    Better,
    Failure,
    Kind,
    Observation,
    Record,
    Verdict,
    difference,
    parsed,
    read_record,
    table,
    write_record,
)
from pytest_amp.record.file import dumps
from pytest_amp.record.table import COLUMNS
from tests.project import ON_CPU, ROOT, Project
from tests.report.records import record

PAGE: dict[str, Any] = json.loads((ROOT / "docs" / "reference" / "record.schema.json").read_text(encoding="utf-8"))
OLD, OLD_2 = (Path(__file__).with_name(f"schema_{number}.json") for number in (1, 2))

needs_jsonschema = pytest.mark.skipif(
    importlib.util.find_spec("jsonschema") is None, reason="needs jsonschema, of the group test"
)


def problems(data: Any) -> list[str]:
    """Return the deviations from the schema of the page."""
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(PAGE)
    validator = jsonschema.Draft202012Validator(PAGE)
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in validator.iter_errors(data)]


def row(**columns: object) -> list[object]:
    """Return a valid row of a table of observations, except for ``columns``."""
    whole = {"key": "rules/cpu/bf16/x", "value": 1, "verdict": "new"} | columns
    return [whole.get(name) for name in COLUMNS]


RUN = """
import pytest


@pytest.mark.parametrize("n", [0, 1])
def test_it(amp, n):
    amp.observe(f"a{n}", float("inf"), kind="error", unit="relative L2", allowed=0.5)
    amp.observe(f"b{n}", [1, None, {"c": True}], kind="state")
    amp.record(f"c{n}", 2.5, unit="ms", better="lower", interval=(2, 3), margin=0.1)


def test_red(amp):
    amp.observe("d", VALUE, kind="count")
    assert VALUE == 1
"""


@needs_jsonschema
@pytest.mark.parametrize("workers", ["0", "1"])
def test_records_of_runs_follow_the_schema(project: Project, workers: str) -> None:
    project.write(test_it=f"VALUE = 1\n{RUN}")
    assert (
        project.run(*ON_CPU, "--amp-record=old.json", "-n", workers).ret == 1
    )  # an infinite error is red, and recorded
    assert problems(project.record("old.json")) == []
    project.write(test_it=f"VALUE = 2\n{RUN}")
    project.run(*ON_CPU, "--amp-baseline=old.json", "--amp-record=new.json", "-n", workers)
    new = project.record("new.json")
    assert problems(new) == []
    red = sorted(row["key"].removeprefix("project/cpu/bf16/test_it::") for row in new["failures"])
    assert red == ["test_it[0]", "test_it[1]", "test_red"]  # two infinite errors, and a difference
    assert new["ran"] == {}  # none to its end
    project.run(*ON_CPU, "--amp-baseline=old.json", "--amp-accept", "-k", "test_it", "-n", workers)
    assert problems(project.record("old.json")) == []


@needs_jsonschema
def test_large_record_follows_the_schema() -> None:
    data = json.loads(dumps(record("2.14.1", seed=1)))
    needed = {"plugin": "0", "python": "3", "pytest": "9", "system": "x", "tolerance_scale": 1.0}
    data["provenance"] |= needed
    assert problems(data) == []


@needs_jsonschema
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("schema",), 1),
        (("complete",), "yes"),
        (("surplus",), 1),
        (("columns",), ["key", "value"]),
        (("observations", 0, "kind"), "none"),
        (("observations", 0, "surplus"), 1),
        (("observations", 0, "rows"), []),
        (("observations", 0, "rows", 0), ["rules/cpu/bf16/x"]),
        (("observations", 0, "rows", 0), row(verdict="gone")),
        (("observations", 0, "rows", 0), [*row(), 1]),
        (("observations", 0, "rows", 0), row(over_seeds=[])),
        (("observations", 0, "rows", 0), row(over_seeds=["low"])),
        (("observations", 0, "rows", 0, 0), "rules/cuda:0/bf16/x"),
        (("observations", 0, "rows", 0), row(interval=[1])),
        (("failures",), [{"key": "rules/cpu/bf16/x"}]),
        (("ran",), {"cpu": ["t"]}),
    ],
)
def test_schema_refuses_invalid_records(place: tuple[str | int, ...], value: object) -> None:
    data = json.loads(dumps(record("2.14.1")))
    data["provenance"] |= {"plugin": "0", "python": "3", "pytest": "9", "system": "x", "tolerance_scale": 1.0}
    data["observations"][0]["rows"][0] = row()
    assert problems(data) == []
    at = data
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    assert len(problems(data)) >= 1


def test_schema_lists_every_kind_verdict_and_direction() -> None:
    properties, columns = PAGE["$defs"]["table"]["properties"], PAGE["$defs"]["row"]["prefixItems"]
    assert properties["kind"]["enum"] == [kind.value for kind in Kind]
    assert properties["better"]["enum"] == [better.value for better in Better]
    assert set(columns[-1]["enum"]) < {verdict.value for verdict in Verdict}
    assert PAGE["properties"]["schema"]["const"] == SCHEMA
    assert PAGE["properties"]["columns"]["const"] == [*table.COLUMNS]
    assert [*properties] == [*table.HEAD, "rows"]
    assert len(columns) == PAGE["$defs"]["row"]["maxItems"] == len(table.COLUMNS)
    ends, further = (1.0, 2.0), (1.0, 3.0)
    result = Observation(
        "a/cpu/bf16/x", Kind.ERROR, 1.0, "u", 1.0, Verdict.NEW, 1.0, "t", ends, Better.LOWER, 0.1, further
    )
    assert result.to_json().keys() == {*table.HEAD, *table.COLUMNS}


def test_file_of_schema_1_is_read() -> None:
    """Schema 1 has a speedup as three observations; facts that it did not record are not invented."""
    actual = read_record(OLD)
    assert json.loads(OLD.read_text(encoding="utf-8"))["schema"] == 1
    assert (actual.ran, actual.failures, actual.complete) == (None, (), True)
    by_key = actual.by_key()
    assert by_key["rules/cpu/bf16/aten::mm"].value == "lower_precision_fp"
    speedup = by_key["speed/cuda/bf16/matmul/over-tf32/speedup"]
    assert (speedup.value, speedup.interval, speedup.better) == (2.97, (2.95, 2.99), Better.HIGHER)
    assert len(actual.observations) == 8
    assert not any(key.endswith(("-low", "-high")) for key in by_key)


def test_file_of_schema_2_is_read() -> None:
    """Schema 2 has a signature for each call in an operator, and earlier keys; the operator's is the least of them."""
    actual = read_record(OLD_2)
    assert json.loads(OLD_2.read_text(encoding="utf-8"))["schema"] == 2
    signatures = {key: observation.value for key, observation in actual.by_key().items() if "signature" in key}
    assert signatures == {
        "kernels/cpu/bf16/add_number/4096/signature": 0.999,
        "kernels/cpu/fp16/registered/cov/0/signature": 1.0,
        "project/cpu/bf16/mine/forward.signature": 1.0,
    }
    assert actual.ran == {"cpu-bf16 kernels": ("test_long_operators::test_it",)}
    assert [failure.why for failure in actual.failures] == ["AmpFailure: no"]
    speedup = actual.by_key()["speed/cuda/bf16/matmul/over-tf32/speedup"]
    assert (speedup.interval, speedup.better, speedup.allowed) == ((2.95, 2.99), Better.HIGHER, 2.5)
    assert len(actual.observations) == 5
    again = parsed(dumps(actual))
    assert again.by_key() == actual.by_key()


def test_file_of_schema_1_is_compared_and_upgraded(tmp_path: Path) -> None:
    old = read_record(OLD)
    new = Record(old.observations[1:], {**old.provenance, "torch": "2.14.1"}, ran={}, failures=())
    actual = difference(old, new)
    assert [observation.verdict for observation in actual.observations] == []
    assert (actual.same, actual.unjudged, actual.not_run) == (5, 2, 1)
    write_record(old, tmp_path / "new.json", replace=False)
    assert json.loads((tmp_path / "new.json").read_text(encoding="utf-8"))["schema"] == SCHEMA
    again = difference(old, read_record(tmp_path / "new.json"))
    assert (again.observations, again.same, again.unjudged) == ((), 6, 2)


@pytest.mark.parametrize("schema", [0, 5, 99, True, "2", "\r", None, 2.5, [2]])
def test_other_schemas_are_refused(tmp_path: Path, schema: object) -> None:
    path = tmp_path / "x.json"
    data = {"schema": schema, "complete": True, "observations": []}
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ValueError, match=r"; this version reads 1, 2, 3, 4$") as error:
        read_record(path)
    assert len(str(error.value).splitlines()) == 1
    assert ("a newer pytest-amp wrote it" in str(error.value)) == (schema in (5, 99))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"failures": {}}, "failures is '{}', not a list"),
        ({"failures": [{"key": "rules/cpu/bf16/x"}]}, "a failure without a key or a reason: "),
        ({"failures": [{"key": "x", "why": "y"}]}, "'x' is not an observation key"),
        ({"ran": []}, "ran is '[]', not lists of tests by place"),
        ({"ran": {"cpu-bf16 rules": "t"}}, "ran is "),
        ({"ran": {"cpu-bf16 rules": [1]}}, "ran is "),
        ({"interval": [2, 1]}, "rules/cpu/bf16/x: interval is '[2, 1]'; expected two numbers, the smaller one first"),
        ({"interval": ["nan", 1]}, "rules/cpu/bf16/x: interval is "),
        ({"interval": 3}, "rules/cpu/bf16/x: interval is "),
        ({"better": "worse"}, "rules/cpu/bf16/x: 'worse' is not a valid Better"),
        ({"margin": "a"}, "rules/cpu/bf16/x: margin is 'a', not a number"),
        ({"allowed": 10**400}, "rules/cpu/bf16/x: allowed is an integer beyond the range of a float"),
    ],
)
def test_invalid_field_of_schema_2_is_refused(tmp_path: Path, change: dict[str, object], says: str) -> None:
    result = dict(Observation("rules/cpu/bf16/x", Kind.STATE, 1).to_json())
    data: dict[str, object] = {"schema": 2, "complete": True, "observations": [result]}
    (data if {"failures", "ran"} & change.keys() else result).update(change)  # type: ignore[arg-type]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ValueError) as error:  # noqa: PT011  # the message is compared below
        read_record(path)
    assert str(error.value).startswith(f"{path}: {says}")


def test_failures_and_completed_tests_survive_a_round_trip(tmp_path: Path) -> None:
    result = Record(
        (),
        ran={"cpu-bf16 rules": ("b::b", "a::a"), "cpu-bf16 a": ()},
        failures=(Failure("rules/cpu/bf16/t::t[λ]", "why\n"),),
    )
    write_record(result, tmp_path / "x.json", replace=False)
    assert read_record(tmp_path / "x.json") == result
