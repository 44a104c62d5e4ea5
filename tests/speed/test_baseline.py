"""Limit of a speedup: its floor, that of a baseline, and whether the environment can be trusted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_amp.devices import find_device
from pytest_amp.devices.accelerator import CudaDevice
from pytest_amp.failure import AmpFailure
from pytest_amp.floors import shipped
from pytest_amp.precision import BF16
from pytest_amp.record import Better, Kind, Observation, Verdict, compare, shifted
from pytest_amp.speed import Demand, Interval, Outcome, SpeedConditions
from pytest_amp.speed.verdict import Rule, judge
from tests.project import SIMULATED, Project, summary
from tests.speed.simulated import check_simulated
from tests.speed.test_check_speedup import TEST, speedy
from tests.speed.test_gate import _no_benchmark

__all__ = ["_no_benchmark", "speedy"]


def least(kind: str, before: Interval | None, floor: float = 0.9) -> tuple[float, bool]:
    """Return the floor that applies, and whether it is the baseline's."""
    conditions = SpeedConditions(find_device("cpu"), BF16, "gate", before=lambda _: before)
    retained, actual = conditions.least(Demand("sums", floor, "fp32", kind=kind))
    assert actual in (None, before)
    return round(retained, 9), actual is not None


QUIET = Interval(1.799, 1.8, 1.801, 12)


def test_baseline_takes_precedence_over_a_lower_floor() -> None:
    assert least("device", QUIET) == (round(1.799 * 0.99, 9), True)
    assert least("step", QUIET) == (round(1.799 * 0.94, 9), True)
    assert least("device", QUIET, floor=1.79) == (1.79, False)
    assert least("device", None) == (0.9, False)


def test_noisy_step_time_is_no_baseline() -> None:
    shaky = Interval(1.7, 1.8, 1.9, 48)
    assert least("step", shaky) == (0.9, False)
    assert least("device", shaky) == (round(1.7 * 0.99, 9), True)


def on_a_card(spread: float, kind: str) -> SpeedConditions:
    """Return an accelerator with a calibration of the sums, and a given spread between processes."""
    row = replace(shipped()[0], gpu="a card", over="fp32", dtype="bf16", work="sums", kind=kind, spread=spread)
    return SpeedConditions(CudaDevice(), BF16, "gate", before=lambda _: QUIET, floors=(row,))


@pytest.mark.parametrize(
    ("kind", "limit", "tolerance"), [("device", 0.0035, 0.01), ("step", 0.0075, 0.03), ("step", 0.015, 0.06)]
)
def test_tolerance_shrinks_with_the_spread_between_processes(
    monkeypatch: pytest.MonkeyPatch, kind: str, limit: float, tolerance: float
) -> None:
    monkeypatch.setattr(CudaDevice, "describe", lambda _: "a card")
    demand = Demand("sums", 0.9, "fp32", kind=kind)
    assert on_a_card(limit, kind).least(demand) == (shifted(QUIET.low, -tolerance), QUIET)
    assert on_a_card(limit, kind).loss(demand) == pytest.approx(1 - (1 - tolerance) / demand.margin)


def speedup(interval: Interval, margin: float | None = None) -> Observation:
    ends = (interval.low, interval.high)
    value = Observation("speed/cuda/bf16/sums", Kind.RATIO, interval.median, "times", interval=ends)
    return replace(value, better=Better.HIGHER, margin=margin)


@pytest.mark.parametrize("kind", ["device", "step"])
@pytest.mark.parametrize("share", [0.85, 0.92, 0.935, 0.96, 0.975, 0.983, 0.987, 0.995, 1.0, 1.1])
def test_gate_and_comparison_agree_on_regressions(kind: str, share: float) -> None:
    conditions = SpeedConditions(find_device("cpu"), BF16, "gate", before=lambda _: QUIET)
    demand = Demand("sums", 0.0, "fp32", kind=kind)
    floor, _ = conditions.least(demand)
    now = Interval(share * QUIET.low, share * QUIET.median, share * QUIET.high, 48)
    below = judge(now, Rule(floor, margin=demand.margin)) is Outcome.FAIL
    compared = compare(speedup(now, conditions.loss(demand)), speedup(QUIET))
    assert (compared.verdict is Verdict.REGRESSED) == below


@pytest.mark.parametrize(("kind", "limit"), [("device", 0.0035), ("step", 0.015)])
def test_large_spread_between_processes_leaves_only_the_floor(
    monkeypatch: pytest.MonkeyPatch, kind: str, limit: float
) -> None:
    """Narrow intervals of one process do not help: the next process may differ by more than a loss."""
    monkeypatch.setattr(CudaDevice, "describe", lambda _: "a card")
    demand = Demand("sums", 0.9, "fp32", kind=kind)
    assert on_a_card(1.01 * limit, kind).least(demand) == (0.9, None)
    assert on_a_card(1.01 * limit, kind).loss(demand) == 1.0, "nor does the record's comparison make it red"


@pytest.mark.parametrize(("now", "outcome"), [(2.0, Outcome.PASS), (2.1, Outcome.PASS)])
def test_small_loss_against_the_baseline_passes(request: pytest.FixtureRequest, now: float, outcome: Outcome) -> None:
    measured = check_simulated(request, candidate=now, floor=0.0, before=Interval(1.5, 1.5, 1.5, 12))
    assert measured is not None
    assert measured.verdict.outcome is outcome


def test_loss_of_a_tenth_against_the_baseline_is_red(request: pytest.FixtureRequest) -> None:
    with pytest.raises(AmpFailure) as failure:
        check_simulated(request, candidate=2.0 / 0.9, floor=0.9, before=Interval(1.5, 1.5, 1.5, 12))
    lines = str(failure.value).splitlines()
    assert lines[0] == "AmpFailure: sums under bf16 autocast is 1.35 times as fast as in IEEE fp32, in step time"
    assert lines[1].split(maxsplit=1) == ["baseline", "1.5 [1.5, 1.5], less 6% with a margin of 3.0%"]
    assert lines[-1].split(maxsplit=1) == ["accept", "the same command with --amp-accept"]


def test_report_mode_does_not_judge(request: pytest.FixtureRequest) -> None:
    measured = check_simulated(request, candidate=4.0, mode="report", before=Interval(1.5, 1.5, 1.5, 12))
    assert measured is not None
    assert measured.verdict.outcome is Outcome.FAIL


@pytest.mark.parametrize("candidate", [1.0, 4.0])
def test_doubtful_environment_is_inconclusive(request: pytest.FixtureRequest, candidate: float) -> None:
    """Neither green nor red, however clear the values are."""
    with pytest.raises(pytest.skip.Exception, match="inconclusive: sums: another process is here"):
        check_simulated(request, candidate=candidate, doubts=("another process is here",))


def test_record_of_an_earlier_run_is_compared_and_accepted(speedy: Project) -> None:
    """A device's own time does not exist here, so that the step is timed: 6 % and the margin."""
    speedy.write(conftest=SIMULATED, test_it=TEST.replace("floor=1.2", "floor=0"))
    options = ("--amp-device=simulated", "--amp-dtype=bf16")
    speedy.here(*options, "--amp-record=record.json").assert_outcomes(passed=1)
    again = speedy.here(*options, "--amp-baseline=record.json")
    again.assert_outcomes(passed=1)
    source = (speedy.path / "test_it.py").read_text(encoding="utf-8")
    speedy.file("test_it.py", source.replace("return lambda: 2.0 if", "return lambda: 2.25 if"))
    slower = speedy.here(*options, "--amp-baseline=record.json")
    slower.assert_outcomes(failed=1)
    slower.stdout.fnmatch_lines(
        ["AmpFailure: work under bf16 autocast is 1.33 times as fast *", "  baseline  1.5 [[]*"]
    )
    assert any("speed" in line or "ran" in line for line in summary(slower))
    reported = speedy.here(*options, "--amp-baseline=record.json", "--amp-speed=report")
    reported.assert_outcomes(passed=1)
    accepting = speedy.here(*options, "--amp-baseline=record.json", "--amp-accept")
    accepting.assert_outcomes(passed=1)
    speedy.here(*options, "--amp-baseline=record.json").assert_outcomes(passed=1)


def test_reported_speedup_is_no_baseline(speedy: Project) -> None:
    """Speedups with a process of another user on the card, or in a report, may be anything."""
    source = TEST.replace("floor=1.2", "floor=0")
    speedy.write(conftest=SIMULATED, test_it=source.replace("return lambda: 2.0 if", "return lambda: 1.0 if"))
    options = ("--amp-device=simulated", "--amp-dtype=bf16")
    speedy.here(*options, "--amp-record=record.json", "--amp-speed=report").assert_outcomes(passed=1)
    speedy.write(test_it=source)
    again = speedy.here(*options, "--amp-baseline=record.json")
    again.assert_outcomes(passed=1)
    assert any("inconclusive" in line for line in summary(again))


def test_noisy_step_time_passes_the_comparison_of_records(speedy: Project) -> None:
    """Only the floor applies, in the comparison of records, too."""
    shaky = "import itertools\nshaky = itertools.cycle([2.0] * 31 + [2.3] * 31)\n" + TEST
    source = shaky.replace("floor=1.2", "floor=0").replace("2.0 if torch", "next(shaky) if torch")
    speedy.write(conftest=SIMULATED, test_it=source)
    options = ("--amp-device=simulated", "--amp-dtype=bf16")
    speedy.here(*options, "--amp-record=record.json").assert_outcomes(passed=1)
    record = (speedy.path / "record.json").read_text(encoding="utf-8")
    assert "speedup" in record
    speedy.file("test_it.py", source.replace("[2.0] * 31 + [2.3] * 31", "[4.0] * 31 + [4.6] * 31"))
    speedy.here(*options, "--amp-baseline=record.json").assert_outcomes(passed=1)
