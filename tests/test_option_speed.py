"""--amp-speed: the devices that are timed; no timing happens here."""

from __future__ import annotations

import pytest

from tests.project import SIMULATED, Project, refused, summary

FAMILY = """
from pytest_amp.devices import DeviceKind
from pytest_amp.families import Family

FAMILY = Family("speed", frozenset({DeviceKind.ACCELERATOR}))
"""
TEST = "def test_it(amp):\n    pass\n"


@pytest.fixture
def speed(project: Project) -> Project:
    """Return a project with a family called speed, and a test of no family."""
    project.file("speed/__init__.py", FAMILY)
    project.file("speed/test_speed.py", "def test_speed(amp):\n    pass\n")
    project.write(conftest=SIMULATED, test_it=TEST)
    return project


def test_process_that_owns_its_device_gates_speed(speed: Project) -> None:
    result = speed.here("--amp-device=simulated", "--amp-dtype=bf16")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["amp: speed gate: this process owns its GPU"])
    result = speed.here("--amp-device=simulated", "--amp-dtype=bf16", "--amp-speed=report")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["amp: speed report: command line"])


def test_off_deselects_the_family_with_a_reason(speed: Project) -> None:
    result = speed.here("--amp-device=simulated", "--amp-dtype=bf16", "--amp-speed=off")
    result.assert_outcomes(passed=1, deselected=1)
    assert "speed     off: off (command line)" in summary(result)
    assert "not run   1 (speed is off (command line))" in summary(result)


def test_speed_family_does_not_run_on_the_cpu(speed: Project) -> None:
    result = speed.here("--amp-device=cpu", "--amp-dtype=bf16", "speed")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "not run   1 (the speed family does not exist on a CPU)" in summary(result)


def test_gate_without_an_accelerator_is_refused(speed: Project) -> None:
    """Refuse the gate, which must not be green without a measurement."""
    expected = (
        "--amp-speed (command line): 'gate' cannot time here: no accelerator in this run; expected here: off, report"
    )
    assert refused(speed.here("--amp-device=cpu", "--amp-speed=gate")) == expected
    assert refused(speed.here("--amp-device=cpu", "--amp-speed=gate", "test_it.py")) == expected


def test_workers_that_share_a_device_do_not_time(speed: Project) -> None:
    options = ("--amp-device=simulated", "--amp-dtype=bf16", "-n", "2")
    result = speed.apart(*options)
    result.assert_outcomes(passed=1)
    assert any(
        line.startswith("not run   1 (speed is off: 2 workers share the accelerator") for line in summary(result)
    )
    line = refused(speed.here(*options, "--amp-speed=gate"))
    assert line.startswith("--amp-speed (command line): 'gate' cannot time here: 2 workers share the accelerator ")
    line = refused(speed.here("--amp-device=cuda", "-n", "2", "--amp-speed=gate"))
    assert "2 workers share 0 GPUs" in line


@pytest.mark.parametrize("value", ["nope", "", "GATE", "on"])
def test_bad_value_is_refused(project: Project, value: str) -> None:
    line = refused(project.here(f"--amp-speed={value}"))
    assert line == f"--amp-speed (command line): {value!r} is not a speed mode; expected off, report, gate"
