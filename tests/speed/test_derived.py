"""Floors of cards without calibration: conservative, from other calibrations and peak rates, and reported as such."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from pytest_amp.floors import Row, shipped
from pytest_amp.speed.derived import SHARE, derived
from pytest_amp.speed.peaks import all_peaks, peaks_of
from tests.project import SIMULATED, Project, summary
from tests.speed.test_check_speedup import TEST, run, speedy

__all__ = ["speedy"]

H200 = Row(
    "NVIDIA H200", "fp32", "bf16", "matmul-4096", "device", 11.7, 12.4, 0.002, 3, "2.11", "13.0", "9", "580", "today"
)
#: Names that the driver has for cards of gpu_peaks.json without calibration.
CARDS = (
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100 80GB PCIe",
    "NVIDIA L4",
    "Tesla T4",
    "NVIDIA GeForce RTX 3090",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA GeForce RTX 5090",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA B200",
)


def floor(card: str, rows: Iterable[Row] = (H200,), *, dtype: str = "bf16", over: str = "fp32") -> float | None:
    result = derived((card, over, dtype, "matmul-4096", "device"), rows)
    return None if result is None else result.floor


def ceiling(card: str, *, over: str = "fp32") -> float:
    peaks = peaks_of(card)
    assert peaks is not None
    result = peaks.ceiling(over, "bf16")
    assert result is not None
    return result


def test_floor_is_half_of_another_card_scaled_by_the_peak_rates() -> None:
    share = ceiling("NVIDIA L4") / ceiling("NVIDIA H200")
    assert 0.2 < share < 0.3
    assert floor("NVIDIA L4") == pytest.approx(SHARE * 12.4 * share, abs=1e-4)


def test_floor_is_not_scaled_up() -> None:
    assert ceiling("NVIDIA A100-SXM4-40GB") > ceiling("NVIDIA H200")
    assert floor("NVIDIA A100-SXM4-40GB") == SHARE * 12.4


def test_speedup_beyond_the_peak_rates_counts_as_their_ratio() -> None:
    """Flash attention has kernels that float32 and an earlier card do not have."""
    row = replace(H200, over="tf32", median=7.2, floor=6.8)
    assert ceiling("NVIDIA H200", over="tf32") == 2.0
    assert floor("NVIDIA A100-SXM4-40GB", [row], over="tf32") == SHARE * 2.0


def test_other_dtype_of_the_card_takes_precedence_over_other_cards() -> None:
    rows = [
        H200,
        replace(H200, gpu="NVIDIA L4", median=3.0, floor=2.8),
        replace(H200, dtype="fp16", median=9.0, floor=8),
    ]
    assert floor("NVIDIA L4", rows, dtype="fp16") == SHARE * 3.0
    assert floor("NVIDIA A100-SXM4-40GB", rows, dtype="fp16") == SHARE * 9.0


def test_lowest_of_several_cards_is_the_floor() -> None:
    rows = [H200, replace(H200, gpu="NVIDIA H100 80GB HBM3", median=11.0, floor=10.4)]
    assert floor("NVIDIA A100-SXM4-40GB", rows) == SHARE * 11.0


@pytest.mark.parametrize("card", ["NVIDIA GH200 480GB", "simulated", "Tesla T4"])
def test_card_without_peak_rates_in_the_dtype_has_no_floor(card: str) -> None:
    assert floor(card) is None


def test_other_work_has_no_floor() -> None:
    assert floor("NVIDIA L4", [replace(H200, work="conv2d")]) is None
    assert floor("NVIDIA L4", [replace(H200, over="tf32")]) is None
    assert floor("NVIDIA L4", [replace(H200, kind="step")]) is None


def test_floor_measured_in_one_dtype_has_a_derived_counterpart() -> None:
    """A floor that was measured in one dtype only has a conservative counterpart."""
    keys = {row.key for row in shipped()}
    counterparts = {
        (gpu, over, {"bf16": "fp16", "fp16": "bf16"}[dtype], work, kind) for gpu, over, dtype, work, kind in keys
    }
    assert counterparts - keys, "every floor was measured in both dtypes: remove this test"
    assert [key for key in counterparts - keys if derived(key, shipped()) is None] == []


@pytest.mark.parametrize("card", CARDS)
def test_listed_card_has_a_conservative_floor_for_each_work(card: str) -> None:
    """No floor is above half of what was measured, or of what the card's arithmetic allows."""
    peaks = peaks_of(card)
    assert peaks is not None
    assert peaks in all_peaks()
    for row in shipped():
        result = derived((card, row.over, row.dtype, row.work, row.kind), shipped())
        most = peaks.ceiling(row.over, row.dtype)
        if most is None:
            assert result is None, "no bf16 in hardware"
            continue
        assert result is not None, row.work
        assert result.floor <= SHARE * min(row.median, most) + 1e-4


#: A card whose name the file of peaks has, beside an H200 of the user's own file of floors.
ON_L4 = SIMULATED + "\n    def describe(self):\n        return 'NVIDIA L4'\n"
UNCALIBRATED = TEST.replace("floor=1.2, ", "")


def test_run_reports_that_a_floor_is_derived(speedy: Project) -> None:
    """A speedup of 1.5 is below half of 8 times the ratio of the peak rates, and above the no-harm floor."""
    from pytest_amp.floors import dumps

    speedy.write(conftest=ON_L4, test_it=UNCALIBRATED)
    row = replace(H200, work="work", kind="step")
    speedy.file("floors.json", dumps([row]))
    remark = (
        "NVIDIA L4 in bf16 is not calibrated: a floor is at most 0.5 of the calibrated speedup of NVIDIA H200, scaled "
        "by the peak rates of both cards; `pytest-amp calibrate` measures it"
    )
    result = run(speedy, "--amp-floors=floors.json")
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "  floor     1.6766 times, with a margin of 3.0%" in text
    assert f"says which arm changed; {remark}" in text
    assert any(line.startswith("note ") and line.endswith(remark) for line in summary(result))
    speedy.file("floors.json", dumps([replace(row, median=10.0, floor=9.0)]))
    run(speedy, "--amp-floors=floors.json").assert_outcomes(passed=1)


def test_run_reports_that_an_unknown_card_has_few_floors(speedy: Project) -> None:
    from pytest_amp.floors import dumps

    speedy.write(conftest=SIMULATED, test_it=UNCALIBRATED)
    speedy.file("floors.json", dumps([replace(H200, work="work")]))
    result = run(speedy, "--amp-floors=floors.json")
    result.assert_outcomes(passed=1)
    says = "simulated is not calibrated, and its peak rates are unknown: only work bound by arithmetic has a floor"
    assert any(says in line for line in summary(result))
    assert not any(says in line for line in summary(run(speedy)))
