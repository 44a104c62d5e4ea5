"""History of releases: one table with a column for each release and a group of rows for each back end."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_amp import cli
from pytest_amp.record import (
    Better,
    Failure,
    Kind,
    Observation,
    Record,
    Value,
    Verdict,
    difference,
    history,
    read_record,
    write_record,
)
from pytest_amp.report.history import Cell, Row, _grades, rows_of
from tests.project import ROOT

TEST = "test_it::test_it"
EXAMPLES = ROOT / "docs" / "lab" / "examples"


def cpu(version: str, rule: str, error: float, *, failures: tuple[Failure, ...] = ()) -> Record:
    observations = tuple(
        observation
        for dtype in ("bf16", "fp16")
        for observation in (
            Observation(f"rules/cpu/{dtype}/aten::mm", Kind.RULE, rule, test=TEST),
            Observation(f"gradients/cpu/{dtype}/clamp/input.0", Kind.ERROR, error, test=TEST),
            Observation(f"gradients/cpu/{dtype}/clamp/input.1", Kind.ERROR, 3 * error, test=TEST),
            Observation(f"semantics/cpu/{dtype}/casts", Kind.COUNT, len(rule), test=TEST),
        )
    )
    ran = {f"cpu-{dtype} {family}": (TEST,) for dtype in ("bf16", "fp16") for family in ("rules", "gradients")}
    return Record(observations, {"torch": f"{version}+cpu", "seed": 0}, ran=ran, failures=failures)


def cuda(
    version: str, dtype: str, speedup: float, *, card: str = "NVIDIA H200", half_interval: float = 0.001
) -> Record:
    ends = ((1 - half_interval) * speedup, (1 + half_interval) * speedup)
    fact = Observation(
        f"speed/cuda/{dtype}/matmul-odd/over-tf32/device/speedup",
        Kind.RATIO,
        speedup,
        interval=ends,
        better=Better.HIGHER,
        margin=0.02,
        test=TEST,
    )
    shared = Observation("gradients/cuda/fp32/mm", Kind.RATIO, 1.0, test=TEST)
    devices: dict[str, Value] = {"cuda": {"gpu": card, "driver": "580"}}
    return Record((fact, shared), {"torch": f"{version}+cu130", "devices": devices, "seed": 0})


CLAMP = "torch 2.14: clamp shares its gradient between a value and the bound that it equals (pytorch/pytorch#191142)"
FAILED = (Failure("semantics/cpu/bf16/test_it::test_region", "AmpFailure: no"),)
RECORDS = {
    "2.14.json": cpu("2.14.1", "fp32", 0.03, failures=FAILED),
    "2.13.json": cpu("2.13.0", "promote", 0.01),
    "2.15.json": cpu("2.15.0", "fp32", 0.03),
    "gpu-bf16.json": cuda("2.13.0", "bf16", 1.63),
    "gpu-fp16.json": cuda("2.13.0", "fp16", 1.60),
    "gpu-bf16-later.json": cuda("2.15.0", "bf16", 1.51),
    "gpu-fp16-later.json": cuda("2.15.0", "fp16", 1.60),
}


def test_rows_are_grouped_by_back_end() -> None:
    """Columns are sorted by version, dtypes with equal rows share one, and a missing record is skipped by the steps."""
    actual = history(RECORDS)
    assert actual.releases == ("2.13.0", "2.14.1", "2.15.0")
    assert [back_end.name for back_end in actual.back_ends] == ["cpu", "cuda (NVIDIA H200)"]
    on_cpu, on_cuda = (rows_of(back_end) for back_end in actual.back_ends)
    both, unknown = ("bf16", "fp16"), "{} without a known reason"
    assert on_cpu == [
        Row(
            "facts",
            "facts",
            both,
            (
                Cell("8 facts"),
                Cell("0 same, 1 test that fails now, 4 worse, 4 changed", moved=True),
                Cell("8 same"),
            ),
        ),
        Row("rules", "aten::mm", both, (Cell("promote"), Cell("fp32", moved=True), Cell("fp32")), (unknown.format(1),)),
        Row(
            "better or worse",
            "gradients/clamp",
            both,
            (Cell(""), Cell("2 worse, 3 times", moved=True), Cell("")),
            (CLAMP,),
        ),
        Row(
            "tests",
            "semantics/test_it::test_region",
            ("bf16",),
            (Cell(""), Cell("fails", moved=True), Cell("")),
            (unknown.format(1),),
        ),
        Row(
            "other changes",
            "semantics",
            both,
            (Cell(""), Cell("1 changed", moved=True), Cell("")),
            (unknown.format(1),),
        ),
    ]
    name = "matmul-odd/over-tf32/device"
    speedups = [row for row in on_cuda if row.group == "speedups"]
    assert speedups == [
        Row(
            "speedups",
            name,
            ("bf16",),
            (Cell("1.63 [1.63, 1.63]"), Cell("-"), Cell("1.51 [1.51, 1.51]", moved=True)),
            (unknown.format(1),),
        ),
        Row("speedups", name, ("fp16",), (Cell("1.6 [1.6, 1.6]"), Cell("-"), Cell("1.6 [1.6, 1.6]"))),
    ]


def test_value_with_a_wide_interval_is_marked_and_not_counted_as_different() -> None:
    records = {"old": cuda("2.14.1", "bf16", 1.60), "new": cuda("2.15.0", "bf16", 1.59, half_interval=0.03)}
    assert difference(*records.values()).of(Verdict.INCONCLUSIVE)
    (row,) = [row for row in rows_of(history(records).back_ends[0]) if row.group == "speedups"]
    assert row.cells == (Cell("1.6 [1.6, 1.6]"), Cell("1.59 [1.54, 1.64] ?"))
    assert row.reasons == ()


@pytest.mark.parametrize(("now", "text"), [(1.04, "1.04"), (0.972, "0.972"), (1.234, "1.2"), (3.0, "3")])
def test_factor_near_one_has_three_digits(now: float, text: str) -> None:
    worse = Observation("speed/cpu/bf16/it", Kind.SECONDS, now, baseline=1.0, verdict=Verdict.REGRESSED, test=TEST)
    assert [*_grades([worse])] == [f"1 worse, {text} times"]


def test_gone_rule_is_in_the_table() -> None:
    old, new = RECORDS["2.13.json"], RECORDS["2.14.json"]
    new = replace(new, observations=tuple(fact for fact in new.observations if fact.kind is not Kind.RULE))
    (back_end,) = history({"old": old, "new": new}).back_ends
    (row,) = [row for row in rows_of(back_end) if row.group == "rules"]
    assert row.cells == (Cell("promote"), Cell("gone", moved=True))


def test_different_cards_are_different_back_ends() -> None:
    other = cuda("2.15.0", "bf16", 1.5, card="NVIDIA L4")
    names = [back_end.name for back_end in history({**RECORDS, "l4.json": other}).back_ends]
    assert names == ["cpu", "cuda (NVIDIA H200)", "cuda (NVIDIA L4)"]


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ({"a": RECORDS["2.13.json"]}, "a history needs records of two or more releases; got 1 of 1"),
        (
            {**RECORDS, "again.json": RECORDS["2.13.json"]},
            r"2\.13\.json and again\.json have rules/cpu/bf16/aten::mm of torch 2\.13\.0\+cpu; expected it in one",
        ),
        ({"a": RECORDS["2.13.json"], "b": Record((), {})}, "b: torch None is not a release"),
    ],
)
def test_records_that_are_no_history_are_refused(records: dict[str, Record], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        history(records)


def test_split_history_has_the_differences_of_the_whole_records() -> None:
    files = {name: read_record(EXAMPLES / f"torch-{name}.json.gz") for name in ("2.6", "2.13", "2.14")}
    back_ends = history(files).back_ends
    for index, (old, new) in enumerate((("2.6", "2.13"), ("2.13", "2.14")), start=1):
        whole = difference(files[old], files[new])
        parts = [step for back_end in back_ends for (_, at), step in back_end.steps.items() if at == index]
        actual = Counter((fact.key, fact.verdict) for step in parts for fact in step.observations)
        assert actual == Counter((fact.key, fact.verdict) for fact in whole.observations)
        assert sum(step.same for step in parts) == whole.same
        rows = [row for back_end in back_ends for row in rows_of(back_end) if row.group == "rules"]
        rules = {fact.name for fact in whole.observations if fact.kind is Kind.RULE}
        assert rules == {row.name for row in rows if row.cells[index].moved}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, content in RECORDS.items():
        write_record(content, tmp_path / name, replace=False)
    return [str(tmp_path / name) for name in RECORDS]


def test_command_writes_each_format(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["history", *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| | dtype | 2.13.0 | 2.14.1 | 2.15.0 | because |" in lines
    assert "| `aten::mm` | bf16, fp16 | promote | **fp32** | fp32 | 1 without a known reason |" in lines
    assert len({line.count(" |") for line in lines if line.startswith("| ")}) == 1
    assert cli.main(["history", *files, "--format=json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [back_end["name"] for back_end in data["back_ends"]] == ["cpu", "cuda (NVIDIA H200)"]
    assert data["back_ends"][0]["rows"][1]["cells"][1] == {"text": "fp32", "moved": True}


def test_command_writes_a_page(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jinja2")
    assert cli.main(["history", *files, "--format=html"]) == 0
    page = capsys.readouterr().out
    assert '<th scope="col">2.14.1</th>' in page
    assert "aten::mm" in page
    assert "NVIDIA H200" in page


def test_command_refuses_records_in_one_line(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["history", files[0]])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("a history needs records of two or more releases; got 1 of 1\n")
