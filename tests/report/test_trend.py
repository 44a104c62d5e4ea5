"""Trend over several records: the change of each step, and the change that only all steps together show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_amp import cli
from pytest_amp.record import Failure, Kind, Observation, Record, Verdict, trend, write_record

TEST = "test_it::test_it"


def record(version: str, rule: str, error: float, *, failures: tuple[Failure, ...] = ()) -> Record:
    observations = (
        Observation("rules/cpu/bf16/mm", Kind.RULE, rule, test=TEST),
        Observation("gradients/cpu/bf16/creeps", Kind.ERROR, error, test=TEST),
        Observation("gradients/cpu/bf16/stays", Kind.ERROR, 0.01, test=TEST),
    )
    ran = {"cpu-bf16 rules": (TEST,), "cpu-bf16 gradients": (TEST,)}
    return Record(observations, {"torch": version, "seed": 0, "date": f"{version}-01"}, ran=ran, failures=failures)


FAILED = (Failure("rules/cpu/bf16/test_it::test_other[a]", "AmpFailure: no"),)
HISTORY = [
    record("2.11.0", "fp32", 0.010),
    record("2.12.0", "promote", 0.014),
    record("2.13.0", "fp32", 0.019, failures=FAILED),
]


def test_trend_has_changes_of_each_step_and_of_the_whole() -> None:
    actual = trend(HISTORY)
    assert [[observation.verdict.value for observation in step.observations] for step in actual.steps] == [
        ["changed"],
        ["failed", "changed"],
    ]
    assert [observation.verdict.value for observation in actual.whole.observations] == ["failed", "regressed"]
    moved = {row.key: row for row in actual.moved}
    assert list(moved) == [FAILED[0].key, "gradients/cpu/bf16/creeps", "rules/cpu/bf16/mm"]
    # No step is beyond the ratio of 1.5, but both together are.
    assert moved["gradients/cpu/bf16/creeps"].verdicts == (None, Verdict.REGRESSED)
    assert moved["gradients/cpu/bf16/creeps"].values == (0.010, 0.014, 0.019)
    assert moved["rules/cpu/bf16/mm"].verdicts == (Verdict.CHANGED, Verdict.CHANGED)
    assert moved[FAILED[0].key].values == (None, None, "fails: AmpFailure: no")


def test_trend_of_one_record_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no history of records \(1\)"):
        trend(HISTORY[:1])


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{number}.json" for number in range(3)]
    for path, content in zip(paths, HISTORY, strict=True):
        write_record(content, path, replace=False)
    return [str(path) for path in paths]


def test_trend_is_printed_as_text(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", *files]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "1  torch 2.11.0 (2.11.0-01)",
        "2  torch 2.12.0 (2.12.0-01)",
        "3  torch 2.13.0 (2.13.0-01)",
        (
            "     errors in the old record and the new record are of one seed: a fixed ratio of 1.5 decides, "
            "whatever their spread"
        ),
        "1 -> 2: 2 same, 1 changed",
        "2 -> 3: 2 same, 1 failed, 1 changed",
        "1 -> 3: 2 same, 1 failed, 1 regressed",
        "",
        "tests that fail now (1)",
        "  rules/cpu/bf16/test_it::test_other[a]: -, -, fails: AmpFailure: no (failed)",
        "",
        "worse (1)",
        "  gradients/cpu/bf16/creeps: 0.01, 0.014, 0.019 (regressed)",
        "",
        "changed (1)",
        "  rules/cpu/bf16/mm: fp32, promote (changed), fp32 (changed)",
    ]


def test_trend_is_printed_as_markdown(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", *files, "--format=md"]) == 1
    page = capsys.readouterr().out
    assert "| key | torch 2.11.0 (2.11.0-01) | torch 2.12.0 (2.12.0-01) | torch 2.13.0 (2.13.0-01) |" in page
    assert "| `rules/cpu/bf16/mm` | fp32 | **promote** | **fp32** |" in page


def test_trend_is_printed_as_json(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff", *files, "--format=json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [len(data["records"]), len(data["steps"])] == [3, 2]
    assert data["whole"]["counts"]["regressed"] == 1
    assert data["moved"][1] == {
        "key": "gradients/cpu/bf16/creeps",
        "values": [0.01, 0.014, 0.019],
        "verdicts": [None, "regressed"],
    }


@pytest.mark.parametrize(
    ("fail_on", "status"),
    [("none", 0), ("gone", 0), ("regressed", 1), ("changed", 1), ("failed", 1), ("new", 0)],
)
def test_fail_on_applies_to_the_whole_and_the_last_step(files: list[str], fail_on: str, status: int) -> None:
    assert cli.main(["diff", *files, f"--fail-on={fail_on}"]) == status


def test_change_reverted_in_an_earlier_step_passes(files: list[str], tmp_path: Path) -> None:
    path = tmp_path / "last.json"
    write_record(HISTORY[0], path, replace=False)
    assert cli.main(["diff", files[0], files[1], files[0], str(path)]) == 0
