"""The hooks that a project or a back end may implement."""

from __future__ import annotations

import importlib.util

import pytest

from tests.project import SIMULATED, Project, refused

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


@pytest.mark.parametrize("workers", ["0", "2"])
def test_each_observation_is_seen_once_where_the_run_is_printed(project: Project, workers: str) -> None:
    project.write(conftest=LISTENING, test_it=OBSERVING)
    result = project.apart("--amp-device=cpu", "--amp-dtype=bf16", "-n", workers)
    assert result.ret == 1
    lines = (project.path / "seen.txt").read_text(encoding="utf-8").splitlines()
    keys = ["project/cpu/bf16/one 1", "project/cpu/bf16/three 3", "project/cpu/bf16/two 2"]
    assert sorted(line.rsplit(" ", 2)[0] for line in lines) == keys
    assert len({line.rsplit(" ", 1)[1] for line in lines}) == 1
    if workers == "2":  # by the controller, which never imports torch
        assert {line.split()[-2] for line in lines} == {"False"}


PROVENANCE = """
def pytest_amp_provenance(provenance):
    assert "torch" in provenance
    provenance["image"] = {value}
"""


def test_provenance(project: Project) -> None:
    project.write(conftest=PROVENANCE.format(value="'sha256:0'"), test_it=OBSERVING)
    project.here("--amp-device=cpu", "--amp-record=new.json")
    assert project.record("new.json")["provenance"]["image"] == "sha256:0"


def test_provenance_that_is_no_json_is_red_and_keeps_the_run(project: Project) -> None:
    project.write(conftest=PROVENANCE.format(value="object()"), test_it="def test_it(amp):\n    pass")
    result = project.here("--amp-device=cpu", "--amp-record=new.json")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["RED       not written: *new.json: Object of type object is not JSON serializable"])


def test_devices(project: Project) -> None:
    project.write(conftest=SIMULATED, test_it="def test_it(amp):\n    assert amp.device.describe() == 'simulated'")
    project.here("--amp-device=simulated").assert_outcomes(passed=2)
    assert "simulated" in refused(project.here("--amp-device=nope")).partition("valid: ")[2]


def test_a_device_of_torch_accelerator_needs_a_name_only(project: Project) -> None:
    project.write(
        conftest="from pytest_amp.devices import DeviceType\n\n\ndef pytest_amp_devices():\n"
        "    return [DeviceType('one'), DeviceType('two')]\n",
        test_it="def test_it(amp):\n    pass",
    )
    line = refused(project.here("--amp-device=two:1"))
    assert "'two:1' does not compute here (RuntimeError: " in line


@pytest.mark.parametrize("name", ["One", "a-b", "", "auto", "all", "fake", "a:1", "1st"])
def test_a_name_that_can_be_no_key_is_refused(project: Project, name: str) -> None:
    hook = f"def pytest_amp_devices():\n    yield DeviceType({name!r})\n"
    project.write(conftest=f"from pytest_amp.devices import DeviceType\n\n\n{hook}")
    assert refused(project.here()).startswith(f"the hook pytest_amp_devices: {name!r} cannot be a device type's name; ")


def test_a_misspelt_hook_is_an_error(project: Project) -> None:
    project.write(conftest="def pytest_amp_observations(observation):\n    pass\n")
    result = project.apart()
    assert result.ret != 0
    assert "unknown hook 'pytest_amp_observations'" in result.stderr.str() + result.stdout.str()


@pytest.mark.skipif(importlib.util.find_spec("pytest_amp.cases") is None, reason="there are no cases yet")
def test_cases(project: Project) -> None:
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
