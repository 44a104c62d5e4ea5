"""Statements of docs/lab/training.md match its tables, and the tables match measurements."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from pytest_amp.devices import find_device
from pytest_amp.precision import LOW
from pytest_amp.training import Setup, band_of, images, run
from pytest_amp.training.study import STORAGES
from tests.project import ROOT
from tools.pages import stored_weights
from tools.pages.training_bands import FAULTS, gradients_short, row_of

TEXT = (ROOT / "docs" / "lab" / "training.md").read_text(encoding="utf-8")


def part(name: str) -> str:
    return TEXT.partition(f"<!-- {name} -->")[2].partition("<!-- end -->")[0]


def rows(name: str) -> list[list[str]]:
    lines = [line for line in part(name).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_margins_of_the_page_match_their_outcome() -> None:
    actual = rows("margins on cpu")
    assert len(actual) == 4 * (1 + len(FAULTS))
    for _, _, fault, used, left in actual:
        if fault.startswith("none"):
            low, high = (float(bound) for bound in used.split(" to "))
            assert 0 < low <= high < 0.5
        elif left == "never":
            assert float(used) <= 1  # the smallest margin over the seeds: one of them stays within its band
        else:
            assert float(used) > 1
            assert re.fullmatch(r"step \d+", left)


def test_runs_with_omitted_steps_leave_the_band() -> None:
    actual = [left for _, _, fault, _, left in rows("margins on cpu") if fault.startswith("every eighth")]
    assert len(actual) == 4
    assert "never" not in actual


@pytest.mark.usefixtures("one_thread")
def test_row_of_the_page_is_reproduced() -> None:
    """Compare on the release of torch in the table; elsewhere rounding differs."""
    if f"torch {torch.__version__}," not in part("margins on cpu"):
        pytest.skip("the table is of another torch")
    task = images()
    setups = [
        Setup(
            task.case,
            find_device("cpu"),
            LOW["fp16"],
            steps=task.steps,
            seed=seed,
            make_optimizer=task.optimizer,
            fresh=True,
        )
        for seed in range(2)
    ]
    row = row_of(gradients_short, setups, [band_of(setup, run(setup, low=False)) for setup in setups])
    (_, _, fault, used, left) = (cell.strip() for cell in row.strip("|").split("|"))
    (expected,) = [row for row in rows("margins on cpu") if row[:3] == ["images", "fp16", fault]]
    assert float(used) == pytest.approx(float(expected[3]), rel=0.25)
    assert left == expected[4]


def test_study_has_every_storage_and_its_bytes() -> None:
    assert [row[:2] for row in rows("study")] == [[storage.name, str(storage.bytes_each)] for storage in STORAGES]


def test_statements_about_the_study_match_its_table() -> None:
    final = {row[0]: float(row[2]) for row in rows("study")}
    lost = {row[0]: float(row[4].rstrip("%")) for row in rows("study")}
    masters = final["float32 masters and states"]
    assert 2.9 < final["bf16 weights, float32 states"] / masters < 3.2  # three times the loss
    assert final["float32 masters, first moment bf16"] / masters == pytest.approx(1, abs=0.01)
    assert final["float32 masters, second moment bf16"] / masters == pytest.approx(1.03, abs=0.01)
    for remedy in ("stochastic rounding", "Kahan sum"):
        assert final[f"bf16 weights, float32 states, {remedy}"] / masters < 1.02
    assert lost["float32 masters and states"] < 1
    assert lost["bf16 weights, float32 states"] > 70


def test_table_and_plot_of_the_study_are_written(tmp_path: Path) -> None:
    page = tmp_path / "training.md"
    page.write_text("before\n<!-- study -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    stored_weights.main([str(tmp_path), "12", "1"], say=lambda _: None)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert all(f"| {storage.name} |" in text for storage in STORAGES)
    assert (tmp_path / "training.svg").read_text(encoding="utf-8").count('stroke-width="1.5"') == len(STORAGES)
