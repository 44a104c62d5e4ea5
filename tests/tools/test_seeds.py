"""The gate over many seeds: those that run, and their report."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.seeds import SeedResult, main, seeds_of, table


def test_seeds_are_ranges_and_numbers() -> None:
    assert seeds_of("0-3,101") == [0, 1, 2, 3, 101]
    with pytest.raises(ValueError, match="invalid literal"):
        seeds_of("all")


def test_table_without_a_failure_has_a_bound_of_the_rate() -> None:
    text = table([SeedResult(seed, 10, ()) for seed in range(20)])
    assert "20 seeds, 200 tests." in text
    assert "less than 15.00%" in text


def test_table_names_each_test_with_its_seeds() -> None:
    text = table([SeedResult(0, 10, ("a::b",)), SeedResult(1, 10, ()), SeedResult(2, 10, ("a::b", "c::d"))])
    assert "| `a::b` | 0, 2 |" in text
    assert "| `c::d` | 2 |" in text
    assert "less than" not in text


def test_seed_with_results_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = tmp_path / "test_by_seed.py"
    test.write_text(
        "def test_seed(request):\n    assert request.config.getoption('amp_seed') != '8'\n", encoding="utf-8"
    )
    arguments = ["--seeds=7-8", f"--folder={tmp_path}", "--", str(test), f"--rootdir={tmp_path}", "--amp-device=cpu"]
    assert main(arguments) == 1
    first = capsys.readouterr().out
    assert "seed 7: 1 tests, none failed" in first
    assert "seed 8: 1 tests, test_by_seed::test_seed" in first
    test.unlink()
    assert main(arguments) == 1
    assert capsys.readouterr().out == first
