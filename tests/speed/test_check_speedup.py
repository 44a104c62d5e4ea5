"""``amp.check_speedup``: the fixture, the marker, the options and the record, on a simulated accelerator."""

from __future__ import annotations

import pytest

from pytest_amp.speed import environment, gate
from tests.project import SIMULATED, Project, red, summary
from tests.speed.simulated import SimulatedClock

#: 3 seconds in float32, 2 under autocast.
TEST = """
import pytest, torch

def work():
    return lambda: 2.0 if torch.is_autocast_enabled("cpu") else 3.0

def test_work(amp):
    amp.check_speedup(work, floor=1.2, versus="fp32")
"""

#: Fields of the conditions of a time.
CONDITIONS = {"gpu", "host", "yardstick", "kernels"}


@pytest.fixture
def speedy(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project with an accelerator whose clock is simulated."""
    monkeypatch.setattr(gate, "checked_clock", lambda _: SimulatedClock())
    project.write(conftest=SIMULATED)
    return project


def run(project: Project, *arguments: str) -> pytest.RunResult:
    return project.here("--amp-device=simulated", "--amp-dtype=bf16", *arguments)


def with_floor(floor: float) -> str:
    return TEST.replace("def test_work", f"@pytest.mark.amp(floor={floor})\ndef test_work")


def test_fast_enough_work_passes_and_is_recorded(speedy: Project) -> None:
    speedy.write(test_it=TEST)
    result = run(speedy, "--amp-record=record.json")
    result.assert_outcomes(passed=1)
    observed = speedy.observed("record.json")
    assert set(observed.pop("project/simulated/bf16/work/over-fp32/step/conditions")) == CONDITIONS
    assert observed == {
        "project/simulated/bf16/work/over-fp32/step/speedup": pytest.approx(1.5),
        "project/simulated/bf16/work/over-fp32/step/float32-time": 3.0,
        "project/simulated/bf16/work/over-fp32/step/autocast-time": 2.0,
    }


def test_floor_of_the_marker_takes_precedence(speedy: Project) -> None:
    speedy.write(test_it=with_floor(1.8))
    result = run(speedy)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "AmpFailure: work under bf16 autocast is 1.5 times as fast as in IEEE fp32, in step time",
            "  floor     1.8 times, with a margin of 3.0%",
            "  rerun     pytest *test_it.py::test_work* --amp-device=simulated --amp-dtype=bf16*",
        ]
    )


def test_report_mode_never_fails(speedy: Project) -> None:
    speedy.write(test_it=with_floor(1.8))
    run(speedy, "--amp-speed=report").assert_outcomes(passed=1)


def test_unqueried_driver_is_noted_once(speedy: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "unread", lambda _: "nvidia-ml-py is not installed")
    speedy.write(test_it=TEST, test_other=TEST)
    result = run(speedy)
    result.assert_outcomes(passed=2)
    (line,) = [line for line in summary(result) if "nvidia-ml-py" in line]
    says = "a time is not in doubt for heat or for processes that the driver shows: nvidia-ml-py is not installed"
    assert line.endswith(f"simulated-bf16: {says}")
    assert not [line for line in summary(run(speedy, "--amp-speed=off")) if "nvidia-ml-py" in line]


def test_off_mode_is_skipped(speedy: Project) -> None:
    speedy.write(test_it=TEST)
    result = run(speedy, "--amp-speed=off")
    result.assert_outcomes(skipped=1)
    assert any("speed is off" in line for line in summary(result))


def test_cpu_is_not_timed(speedy: Project) -> None:
    speedy.write(test_it=TEST)
    result = speedy.here("--amp-device=cpu,simulated", "--amp-dtype=bf16")
    result.assert_outcomes(passed=1, skipped=1)


def test_inconclusive_test_is_counted_apart_and_red_alone(speedy: Project) -> None:
    speedy.write(test_it=with_floor(1.52))
    result = run(speedy)
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "1 inconclusive" in summary(result)[0]
    assert red(result)


def test_strict_option_makes_inconclusive_red(speedy: Project) -> None:
    speedy.write(test_it=with_floor(1.52))
    result = run(speedy, "--amp-strict")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*inconclusive, which --amp-strict refuses"])


def test_benchmark_fixture_may_come_first(speedy: Project) -> None:
    speedy.write(test_it=TEST.replace("(amp)", "(benchmark, amp)"))
    run(speedy).assert_outcomes(passed=1)


def test_case_is_timed_with_a_synchronizing_clock(project: Project) -> None:
    """Use the accelerator's real clock: it has no events, so that it is synchronised."""
    project.write(
        conftest=SIMULATED,
        test_it="""
import torch

def test_model(amp):
    case = amp.case(lambda: torch.nn.Linear(8, 1), lambda: torch.ones(4, 8), lambda model, x: model(x).sum())
    measured = amp.check_speedup(case, floor=1e-6, versus="tf32")
    assert measured.clock == "perf_counter and synchronize"
""",
    )
    run(project, "--amp-speed=report").assert_outcomes(passed=1)
