"""Margins of planted defects: the measures that detect them, and their distance from healthy tests."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.planted.table import find, names
from tests.project import ROOT
from tools.planted_margins.__main__ import ALSO, guards, main
from tools.planted_margins.observed import own
from tools.planted_margins.tables import ENOUGH, IDLE, Entry, Report, tables, telling, telling_of, too_near

NAMES = set(names())


def test_own_error_is_the_excess_of_independent_errors() -> None:
    assert own(1.0) == own(0.9) == 0.0
    assert own(math.sqrt(2.0)) == pytest.approx(1.0)


def entry(margins: Mapping[str, float], outcome: str = "failed") -> Entry:
    return {
        "outcome": outcome,
        "says": "",
        "seconds": 0.5,
        "step": {"noise": 1.25, "excess": (1.0, 2.5), "distance": None},
        "operator": {},
        "margins": {measure: (margin, "a tensor") for measure, margin in margins.items()},
    }


TEST = "suites/gradients/test_zoo.py::test_step[cpu-{}-mlp]"
BF16, FP16 = TEST.format("bf16"), TEST.format("fp16")


@pytest.mark.parametrize(
    ("margins", "measure", "factor"),
    [
        ({"error": 3.0, "bits": math.inf}, "error", 6.0),  # a value that is far enough
        ({"error": 1.0, "bits": math.inf}, "bits", math.inf),  # one within its bound does not count
        ({"near": 1.2, "bits": math.inf}, "bits", math.inf),  # an exact measure precedes a value that is near
        ({"near": 1.2}, "near", 1.5),
        ({"near": 1.2, "error": 1.5}, "error", 3.0),
        ({"error": 0.9}, "", math.inf),  # only a message
    ],
)
def test_telling_measure_of_a_defect_is_selected(margins: dict[str, float], measure: str, factor: float) -> None:
    worst = {"error": (0.5, "x"), "near": (0.8, "x"), "bits": (0.0, "x")}
    actual = telling(BF16, entry(margins), worst)
    assert actual.measure == measure
    assert actual.factor == pytest.approx(factor)


def report(**margins: float) -> Report:
    healthy = {BF16: entry({"error": 0.5}, "passed"), FP16: entry({"error": 9.0})}  # red tests are not healthy
    return Report(healthy, {"a_defect": {BF16: entry(margins), FP16: entry({}, "passed")}})


def test_defect_near_healthy_tests_is_listed() -> None:
    assert too_near(report(error=2.0)) == []
    assert too_near(report(error=1.1, other=0.9)) == []
    assert too_near(report(error=0.9)) == []  # a message detects it
    near = report(error=1.1)
    near.healthy[BF16] = entry({"error": 0.9}, "passed")
    assert too_near(near) == ["a_defect"]
    green = report()
    green.planted["a_defect"][BF16]["outcome"] = "passed"
    assert too_near(green) == ["a_defect"]


def test_tables_have_the_measurements() -> None:
    text = tables(report(error=2.0))
    assert "| `a_defect` | zoo: mlp | bf16 | 1.25 u | 1 (2.5) |  |  | 0.5 | error | 2 | 0.5 | 0.5 | 4 |" in text
    assert "| `a_defect` | zoo: mlp | see above | green: it is as it should be |" in text
    assert "| error | 0.5 | zoo: mlp, bf16: a tensor | 2 | `a_defect`, bf16 | 4 |" in text
    words = tables(report())
    assert "| `a_defect` | zoo: mlp | an assertion | green: it is as it should be |" in words


def test_named_defects_exist() -> None:
    assert ALSO.keys() <= NAMES
    assert {name for name, _ in IDLE} <= NAMES
    page = (ROOT / "docs" / "lab" / "planted.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) <= NAMES
    assert guards(find("mse_loss_is_hollow"), "cuda") == [
        "suites/gradients/test_wider_zoo.py::test_step[cuda-bf16-loss_mse]"
    ]


def test_command_plants_defects_in_both_dtypes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, defects = tmp_path / "margins.json", ["gelu_rounds_twice", "cast_loses_history"]
    assert main(["cpu", str(file), *defects]) == 0
    printed = capsys.readouterr().out
    assert "2 planted, green or too near: none; 4 healthy tests, red: none" in printed
    actual = Report(**json.loads(file.read_text(encoding="utf-8")))
    assert not [measure for measure in actual.worst() if measure == "not what the verdict says"]
    assert all(row["outcome"] == "passed" for row in actual.healthy.values())
    for dtype in ("bf16", "fp16"):
        twice, missing = (telling_of(actual, name, dtype) for name in defects)
        assert twice is not None
        assert twice.measure == "operator rounds twice"
        assert twice.factor > ENOUGH
        assert missing is not None
        assert not missing.measure
        assert "gelu forward: 0.7" in printed
        assert re.search(r"\| `cast_loses_history` \| zoo: mlp \| mlp: the gradient of 0.weight under", printed)
    before = file.read_bytes()
    assert main(["cpu", str(file), *defects]) == 0  # from the report alone
    assert file.read_bytes() == before
