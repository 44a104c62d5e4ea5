"""The methods of the fixture: case, check_gradients, check_dtypes, and the hook that adds cases."""

from __future__ import annotations

from tests.project import Project

MODEL = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))

def batch():
    return torch.randn(6, 8)

def loss(model, x):
    return model(x).float().square().mean()
"""


def test_user_model_is_checked_and_recorded(project: Project) -> None:
    project.write(
        model=MODEL,
        test_it="""
from model import batch, build, loss
import torch

def test_my_model(amp):
    case = amp.case(build, batch, loss)
    amp.check_gradients(case)
    amp.check_dtypes(case, {"0": amp.dtype, "": amp.dtype})
""",
    )
    result = project.here("--amp-device=cpu", "--amp-record=new.json")
    result.assert_outcomes(passed=2)
    observed = project.observed("new.json")
    assert observed["project/cpu/bf16/test_it::test_my_model/0.dtype"] == "bfloat16"
    assert 0 < observed["project/cpu/fp16/test_it::test_my_model/0.weight"] < 0.002


def test_case_is_named_by_its_argument_or_the_test(project: Project) -> None:
    project.write(
        model=MODEL,
        test_it="""
from model import batch, build, loss

def test_it(amp):
    assert amp.case(build, batch, loss).name == "it"
    assert amp.case(build, batch, loss, name="other").name == "other"
""",
    )
    project.here("--amp-device=cpu").assert_outcomes(passed=2)


def test_fixture_uses_the_seed_of_the_run(project: Project) -> None:
    test = """
from model import batch, build, loss

def test_it(amp):
    amp.check_gradients(amp.case(build, batch, loss))
"""
    project.write(model=MODEL, test_it=test)
    observed = []
    for name, seed in (("a.json", "1"), ("b.json", "1"), ("c.json", "2")):
        project.here("--amp-device=cpu", f"--amp-seed={seed}", f"--amp-record={name}").assert_outcomes(passed=2)
        observed.append(project.observed(name))
    assert observed[0] == observed[1]
    assert observed[0] != observed[2]


def test_tolerance_argument_precedes_marker_and_noise(project: Project) -> None:
    """The argument precedes the marker, which precedes the noise; the option multiplies."""
    project.write(
        model=MODEL,
        test_it="""
import pytest
from model import batch, build, loss

@pytest.mark.amp(tolerance=1e-7)
def test_marker(amp):
    amp.check_gradients(amp.case(build, batch, loss))

@pytest.mark.amp(tolerance=1e-7)
def test_argument(amp):
    amp.check_gradients(amp.case(build, batch, loss), tolerance=0.5)

def test_noise(amp):
    amp.check_gradients(amp.case(build, batch, loss))
""",
    )
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["AmpFailure: marker: *has an error of * more than the allowed 1e-07*", "*the given tolerance*"]
    )
    project.here("--amp-device=cpu", "--amp-tolerance-scale=1e6", "-k", "marker").assert_outcomes(passed=2)
    project.here("--amp-device=cpu", "--amp-tolerance-scale=0.01", "-k", "noise").assert_outcomes(failed=2)


def test_failure_prints_the_rerun_command(project: Project) -> None:
    project.write(
        model=MODEL,
        test_it="""
from model import batch, build, loss

def test_it(amp):
    amp.check_gradients(amp.case(build, batch, loss), tolerance=1e-9)
""",
    )
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16")
    result.stdout.fnmatch_lines(["*rerun*pytest *test_it.py::test_it?cpu-bf16?*--amp-device=cpu --amp-dtype=bf16*"])
