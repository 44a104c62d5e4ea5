"""Records that are joined into one, and the command that does it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_amp import cli
from pytest_amp.record import Kind, Observation, Record, Value, joined, read_record, write_record

TEST = "test_it::test_it"


def record(dtype: str, *names: str, **provenance: Value) -> Record:
    """Return a record of facts of one dtype, and of one in float32 that every run has."""
    facts = [Observation(f"rules/cuda/{dtype}/{name}", Kind.RULE, "fp32", test=TEST) for name in names]
    shared = Observation("formats/cuda/fp32/maximum", Kind.RATIO, float(len(names)), test=TEST)
    devices: dict[str, Value] = {"cuda": {"gpu": "NVIDIA H200"}}
    return Record(
        (*facts, shared),
        {"torch": "2.15.0", "devices": devices, "seed": 0, "revisions": dict.fromkeys(names, dtype), **provenance},
        summary={f"cuda-{dtype} rules": {"passed": len(names)}},
        ran={f"cuda-{dtype} rules": (TEST,), "cuda-fp32 formats": (TEST,)},
    )


def test_joined_record_has_the_facts_of_both() -> None:
    """Facts in float32, which both have, are the first record's."""
    both = joined(("a", record("bf16", "mm", "exp")), ("b", record("fp16", "mm")))
    assert {entry.key: entry.value for entry in both.observations} == {
        "rules/cuda/bf16/mm": "fp32",
        "rules/cuda/bf16/exp": "fp32",
        "rules/cuda/fp16/mm": "fp32",
        "formats/cuda/fp32/maximum": 2.0,
    }
    assert both.ran is not None
    assert {*both.ran} == {"cuda-bf16 rules", "cuda-fp16 rules", "cuda-fp32 formats"}
    assert both.summary == {"cuda-bf16 rules": {"passed": 2}, "cuda-fp16 rules": {"passed": 1}}
    assert both.provenance["revisions"] == {"mm": "bf16", "exp": "bf16"}
    assert both.complete
    assert not joined(("a", both), ("b", replace(record("fp16", "log"), complete=False))).complete


def test_dropped_place_leaves_neither_tests_nor_counts() -> None:
    """Else the joined record would have run a test of which it has no observation."""
    second = record("fp16", "mm")
    second = replace(
        second,
        summary={**second.summary, "cuda-fp32 memory": {"passed": 1}},
        ran={"cuda-fp16 rules": (TEST,), "cuda-fp32 formats": (TEST,), "cuda-fp32 memory": (TEST,)},
    )
    both = joined(("a", record("bf16", "mm")), ("b", second))
    assert both.ran is not None
    assert {*both.ran} == {"cuda-bf16 rules", "cuda-fp16 rules", "cuda-fp32 formats"}
    assert {*both.summary} == {"cuda-bf16 rules", "cuda-fp16 rules"}


def test_hardware_of_both_is_kept() -> None:
    both = joined(("a", record("bf16", "mm")), ("b", record("fp16", "mm", devices={"cpu": {"cpu_capability": "AVX2"}})))
    assert both.provenance["devices"] == {"cuda": {"gpu": "NVIDIA H200"}, "cpu": {"cpu_capability": "AVX2"}}


def test_command_writes_the_joined_record(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("bf16.json", "fp16.json.gz")]
    for path, dtype in zip(paths, ("bf16", "fp16"), strict=True):
        write_record(record(dtype, "mm"), path, replace=False)
    new = tmp_path / "new.json.gz"
    assert cli.main(["join", str(new), *map(str, paths)]) == 0
    expected = joined(("a", record("bf16", "mm")), ("b", record("fp16", "mm")))
    assert read_record(new).by_key() == expected.by_key()


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (record("bf16", "mm"), "have rules/cuda/bf16/mm of torch 2.15.0; expected it in one record"),
        (record("fp16", "mm", torch="2.14.1"), "has torch 2.15.0, {other} 2.14.1; expected equal values"),
        (record("fp16", "mm", seed=1), "has seed 0, {other} 1; expected equal values"),
        (record("fp16", "mm", devices={"cuda": {"gpu": "L4"}}), "has cuda {{'gpu': 'NVIDIA H200'}}, {other} "),
    ],
)
def test_command_refuses_records_that_differ_in_their_conditions(
    other: Record, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, new = (tmp_path / name for name in ("first.json", "second.json", "new.json"))
    write_record(record("bf16", "mm"), first, replace=False)
    write_record(other, second, replace=False)
    with pytest.raises(SystemExit) as ended:
        cli.main(["join", str(new), str(first), str(second)])
    assert ended.value.code == 2
    assert says.format(other=second) in capsys.readouterr().err
    assert not new.exists()


def test_command_never_overwrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "record.json"
    write_record(record("bf16", "mm"), path, replace=False)
    with pytest.raises(SystemExit):
        cli.main(["join", str(path), str(path)])
    assert f"{path}: exists already" in capsys.readouterr().err
