"""Written files follow docs/reference/record.schema.json, and invalid files are refused in one line."""

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
    RecordError,
    Verdict,
    read_record,
    table,
    write_record,
)
from pytest_amp.record.file import dumps
from pytest_amp.record.table import COLUMNS
from tests.project import ON_CPU, ROOT, Project
from tests.report.records import record

PAGE: dict[str, Any] = json.loads((ROOT / "docs" / "reference" / "record.schema.json").read_text(encoding="utf-8"))
KEY = "rules/cpu/bf16/x"

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


@pytest.mark.parametrize("schema", [0, 1, 3, 5, 99, True, "4", "\r", None, 2.5, [2]])
def test_other_schemas_are_refused(tmp_path: Path, schema: object) -> None:
    path = tmp_path / "x.json"
    data = {"schema": schema, "complete": True, "observations": []}
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ValueError, match=r"; this version reads 4$") as error:
        read_record(path)
    assert len(str(error.value).splitlines()) == 1
    assert ("a newer pytest-amp wrote it" in str(error.value)) == (schema in (5, 99))


def written(**changes: object) -> dict[str, object]:
    """Return the data of a file with one observation; ``changes`` are fields of the observation, ... omits one."""
    data = {"key": KEY, "kind": "rule", "value": 1, "verdict": "pass", **changes}
    data = {name: value for name, value in data.items() if value is not ...}
    head = {name: data[name] for name in table.HEAD if name in data}
    return whole(observations=[{**head, "rows": [[data.get(name) for name in COLUMNS]]}])


def whole(**changes: object) -> dict[str, object]:
    return {"schema": SCHEMA, "complete": True, "observations": [], **changes}


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([], "not a record of this plugin"),
        ({"schema": SCHEMA}, "not a record of this plugin"),
        ({"observations": []}, "not a record of this plugin"),
        (whole(observations={}), "not a record of this plugin"),
        ([written()], "not a record of this plugin"),
        (whole(complete="yes"), "provenance and summary must be objects, "),
        (whole(provenance=[]), "provenance and summary must be "),
        (whole(summary=None), "provenance and summary must be "),
        (whole(observations=[1]), "a table without rows: '1'"),
        (whole(observations=[{"kind": "rule", "rows": [[KEY]]}]), "a row is "),
        (whole(observations=[{"kind": "rule", "rows": [[KEY, 1]] * 2}]), f"two observations with the key {KEY}"),
        (written(key=...), "an observation without a key: "),
        (written(key=3), "an observation without a key: "),
        (written(key="x"), "'x' is not an observation key"),
        (written(kind=...), f"{KEY}: None is not a valid Kind"),
        (written(kind="nope"), f"{KEY}: 'nope' is not a valid Kind"),
        (written(kind=[]), f"{KEY}: [] is not a valid Kind"),
        (written(verdict="nope"), f"{KEY}: 'nope' is not a valid Verdict"),
        (written(unit=1), f"{KEY}: unit is '1', not text"),
        (written(test=["x"]), f"{KEY}: test is \"['x']\", not text"),
        (written(allowed="much"), f"{KEY}: allowed is 'much', not a number"),
        (written(allowed=True), f"{KEY}: allowed is 'True', not a number"),
        (written(allowed=10**400), f"{KEY}: allowed is an integer beyond the range of a float"),
        (written(interval=[2, 1]), f"{KEY}: interval is '[2, 1]'; expected two numbers, the smaller one first"),
        (written(interval=["nan", 1]), f"{KEY}: interval is "),
        (written(interval=3), f"{KEY}: interval is "),
        (written(better="worse"), f"{KEY}: 'worse' is not a valid Better"),
        (written(margin="a"), f"{KEY}: margin is 'a', not a number"),
        (whole(failures={}), "failures is '{}', not a list"),
        (whole(failures=[{"key": KEY}]), "a failure without a key or a reason: "),
        (whole(failures=[{"key": "x", "why": "y"}]), "'x' is not an observation key"),
        (whole(ran=[]), "ran is '[]', not lists of tests by place"),
        (whole(ran={"cpu-bf16 rules": "t"}), "ran is "),
        (whole(ran={"cpu-bf16 rules": [1]}), "ran is "),
    ],
)
def test_malformed_file_is_refused_in_one_line(tmp_path: Path, data: object, problem: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(RecordError) as error:
        read_record(path)
    assert str(error.value).startswith(f"{path}: {problem}")
    assert len(str(error.value).splitlines()) == 1


def test_failures_and_completed_tests_survive_a_round_trip(tmp_path: Path) -> None:
    result = Record(
        (),
        ran={"cpu-bf16 rules": ("b::b", "a::a"), "cpu-bf16 a": ()},
        failures=(Failure("rules/cpu/bf16/t::t[λ]", "why\n"),),
    )
    write_record(result, tmp_path / "x.json", replace=False)
    assert read_record(tmp_path / "x.json") == result
