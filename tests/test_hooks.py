"""Hooks that a project or a back end may implement."""

from __future__ import annotations

import importlib.util

import pytest

from tests.project import SIMULATED, Project, red, refused

LISTENING = """
import json
import os
import sys


def pytest_amp_observation(observation):
    with open("seen.txt", "a") as file:
        file.write(f"{observation.key} {observation.value} {'torch' in sys.modules} {os.getpid()}\\n")
"""
OBSERVING = """
def test_one(amp):
    amp.observe("one", 1, kind="count")
    amp.observe("two", 2, kind="count")


def test_other(amp):
    amp.observe("three", 3, kind="count")
    assert False
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_observation_hook_is_called_once_in_the_reporting_process(project: Project, workers: str) -> None:
    project.write(conftest=LISTENING, test_it=OBSERVING)
    result = project.apart("--amp-device=cpu", "--amp-dtype=bf16", "-n", workers)
    assert result.ret == 1
    lines = (project.path / "seen.txt").read_text(encoding="utf-8").splitlines()
    keys = ["project/cpu/bf16/one 1", "project/cpu/bf16/three 3", "project/cpu/bf16/two 2"]
    assert sorted(line.rsplit(" ", 2)[0] for line in lines) == keys
    assert len({line.rsplit(" ", 1)[1] for line in lines}) == 1
    if workers == "1":  # by the controller, which never imports torch
        assert {line.split()[-2] for line in lines} == {"False"}


GREEN = """
def test_green(amp):
    amp.observe("one", 1, kind="count")
    amp.observe("two", 2, kind="count")
"""

PROVENANCE = """
def pytest_amp_provenance(provenance):
    assert "torch" in provenance
    provenance["image"] = {value}
"""


def test_provenance_hook_adds_to_the_record(project: Project) -> None:
    project.write(conftest=PROVENANCE.format(value="'sha256:0'"), test_it=OBSERVING)
    project.here("--amp-device=cpu", "--amp-record=new.json")
    assert project.record("new.json")["provenance"]["image"] == "sha256:0"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("provenance['image'] = object()", ": image: Object of type object is not JSON serializable"),
        ("provenance[3] = 4", ": the name 3 is not text"),
        ("provenance['seed'] = 4", " changes seed, on which comparisons rest; expected another name"),
        ("raise KeyError('job')", " raised KeyError (conftest.py:3): 'job'"),
    ],
)
def test_invalid_provenance_is_red_and_the_record_is_written(project: Project, body: str, says: str) -> None:
    project.write(
        conftest=f"def pytest_amp_provenance(provenance):\n    provenance.update(cell=1)\n    {body}\n",
        test_it=GREEN,
    )
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16", "--amp-record=new.json", "--amp-report=md:new.md")
    assert (result.ret, red(result)) == (1, [f"the hook pytest_amp_provenance{says}"])
    assert len(project.observed("new.json")) == 2
    provenance = project.record("new.json")["provenance"]
    assert (provenance["cell"], provenance["seed"]) == (1, 0)


def test_provenance_hook_cannot_remove_entries(project: Project) -> None:
    hook = "def pytest_amp_provenance(provenance):\n    provenance.clear()\n    provenance['command'] = '(hidden)'\n"
    project.write(conftest=hook, test_it=GREEN)
    assert project.here("--amp-device=cpu", "--amp-record=new.json").ret == 0
    provenance = project.record("new.json")["provenance"]
    assert (provenance["command"], provenance["tolerance_scale"]) == ("(hidden)", 1.0)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_observation_hook_that_raises_is_red_at_the_end(project: Project, workers: str) -> None:
    project.write(
        conftest="def pytest_amp_observation(observation):\n    raise OSError('no such host')\n", test_it=GREEN
    )
    result = project.apart(
        "-p", "xdist", "-n", workers, "--amp-device=cpu", "--amp-dtype=bf16", "--amp-record=new.json"
    )
    result.assert_outcomes(passed=1)
    assert (result.ret, len(red(result))) == (1, 1)
    assert red(result) == ["the hook pytest_amp_observation raised OSError (conftest.py:2): no such host"]
    assert len(project.observed("new.json")) == 2


def test_devices_hook_that_raises_is_reported_in_one_line(project: Project) -> None:
    project.write(conftest="def pytest_amp_devices():\n    raise RuntimeError('no driver')\n    yield\n")
    assert refused(project.here()) == "the hook pytest_amp_devices raised RuntimeError (conftest.py:2): no driver"


def test_devices_hook_adds_a_device(project: Project) -> None:
    project.write(conftest=SIMULATED, test_it="def test_it(amp):\n    assert amp.device.describe() == 'simulated'")
    project.here("--amp-device=simulated").assert_outcomes(passed=2)
    assert "simulated" in refused(project.here("--amp-device=nope")).partition("expected ")[2]


def test_device_type_needs_a_name_only(project: Project) -> None:
    project.write(
        conftest="from pytest_amp.devices import DeviceType\n\n\ndef pytest_amp_devices():\n"
        "    return [DeviceType('one'), DeviceType('two')]\n",
        test_it="def test_it(amp):\n    pass",
    )
    line = refused(project.here("--amp-device=two:1"))
    assert "'two:1' does not compute here (RuntimeError: " in line


@pytest.mark.parametrize("name", ["One", "a-b", "", "auto", "all", "fake", "a:1", "1st"])
def test_device_name_that_cannot_be_in_a_key_is_refused(project: Project, name: str) -> None:
    hook = f"def pytest_amp_devices():\n    yield DeviceType({name!r})\n"
    project.write(conftest=f"from pytest_amp.devices import DeviceType\n\n\n{hook}")
    assert refused(project.here()).startswith(f"the hook pytest_amp_devices: {name!r} cannot be a device type's name; ")


def test_misspelt_hook_is_refused(project: Project) -> None:
    project.write(conftest="def pytest_amp_observations(observation):\n    pass\n")
    result = project.apart()
    assert result.ret != 0
    assert "unknown hook 'pytest_amp_observations'" in result.stderr.str() + result.stdout.str()


@pytest.mark.skipif(importlib.util.find_spec("pytest_amp.cases") is None, reason="there are no cases yet")
def test_cases_hook_adds_a_case(project: Project) -> None:
    project.write(
        conftest="""
from pytest_amp.cases import Case


def pytest_amp_cases():
    import torch

    yield Case(
        name="mine",
        build=lambda: torch.nn.Linear(4, 4),
        batch=lambda: torch.randn(2, 4),
        loss=lambda model, batch: model(batch).float().square().mean(),
    )
""",
        test_it="""
import pytest


def cases(target):
    return [pytest.param(case, id=case.name) for case in target.added_cases()]


@pytest.mark.amp_parametrize("case", cases)
def test_it(amp, case):
    assert case.name == "mine"
""",
    )
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16", "-v")
    result.stdout.fnmatch_lines(["*test_it[[]cpu-bf16-mine[]] PASSED*"])
