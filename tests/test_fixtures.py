"""Fixtures of the plugin: their values, ids, scopes and refusals."""

from __future__ import annotations

import pytest

from tests.project import SIMULATED, Project, ids, refused

ON_CPU = ("--amp-device=cpu", "--amp-dtype=bf16,fp16")

ALL = """
import pytest
import torch

from pytest_amp.devices import DeviceKind


@pytest.mark.parametrize("n", [1])
def test_amp(amp, n):
    assert amp.device.kind is DeviceKind.CPU
    assert (amp.device.type, amp.device.key, amp.device.name) == ("cpu", "cpu", "cpu")
    assert amp.dtype is amp.precision.dtype
    assert amp.config.device == ("cpu",)
    assert amp._marker.fake is False
    assert amp.target.id == f"cpu-{amp.precision.name}"
    x = torch.randn(4, 4)
    with amp.autocast():
        assert (x @ x).dtype == amp.dtype
    with amp.autocast(enabled=False):
        assert (x @ x).dtype == torch.float32
    with amp.autocast(dtype=torch.bfloat16, cache_enabled=False):
        assert (x @ x).dtype == torch.bfloat16
        assert not torch.is_autocast_cache_enabled()


def test_device(amp_device):
    assert amp_device == torch.device("cpu")


def test_dtype(amp_dtype):
    assert amp_dtype in (torch.bfloat16, torch.float16)


def test_autocast(amp_autocast, amp_dtype):
    x = torch.randn(4, 4)
    with amp_autocast():
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("cpu") == amp_dtype == (x @ x).dtype
        with amp_autocast(enabled=False):
            assert (x @ x).dtype == torch.float32
        with amp_autocast(dtype=torch.float16, cache_enabled=False):
            assert (x @ x).dtype == torch.float16
    assert not torch.is_autocast_enabled("cpu")


def test_scaler(amp_scaler):
    scaler = amp_scaler(init_scale=8.0, growth_interval=3)
    assert isinstance(scaler, torch.amp.GradScaler)
    assert (scaler.get_scale(), scaler.get_growth_interval(), scaler.is_enabled()) == (8.0, 3, True)
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor()) == (2.0, 0.5)
    assert amp_scaler(growth_factor=3.0, backoff_factor=0.25).get_growth_factor() == 3.0
    assert not amp_scaler(enabled=False).is_enabled()
    assert amp_scaler().get_scale() == 2.0**16


@pytest.mark.amp(dtypes=["fp32", "bf16", "fp16"])
def test_precision(amp_precision, amp_autocast):
    x = torch.randn(4, 4)
    with amp_precision.context():
        assert (x @ x).dtype == amp_precision.dtype
    with amp_autocast():  # a disabled region under fp32
        assert (x @ x).dtype == amp_precision.dtype
    with amp_autocast(dtype=torch.bfloat16):
        assert (x @ x).dtype == torch.bfloat16
"""


def test_fixtures_return_their_values(project: Project) -> None:
    project.write(test_it=ALL)
    result = project.here(*ON_CPU)
    result.assert_outcomes(passed=13)
    assert result.ret == 0


def test_ids_name_device_and_dtype_of_a_single_target(project: Project) -> None:
    project.write(test_it="def test_it(amp):\n    pass")
    listed = ("--collect-only", "-q", "--amp-device=cpu")
    assert ids(project.here(*listed, "--amp-dtype=fp16")) == ["cpu-fp16"]
    assert ids(project.here(*listed, "--amp-dtype=torch.float16,bfloat16")) == ["cpu-fp16", "cpu-bf16"]


def test_context_of_an_unbound_precision_is_refused() -> None:
    from pytest_amp.precision import BF16

    with pytest.raises(RuntimeError, match="bf16 is bound to no device; take it from the fixture amp_precision"):
        BF16.context()


KINDS = """
import pytest

from pytest_amp.precision.float32 import has_fp32_precision


@pytest.mark.amp(dtypes=["fp32", "tf32"])
def test_it(amp_precision):
    from torch.backends import cuda, cudnn

    with amp_precision.context():
        if has_fp32_precision():
            found = (cuda.matmul.fp32_precision, cudnn.conv.fp32_precision)
        else:
            found = tuple("tf32" if tf32 else "ieee" for tf32 in (cuda.matmul.allow_tf32, cudnn.allow_tf32))
    assert found == (("tf32", "tf32") if amp_precision.name == "tf32" else ("ieee", "ieee"))
"""


def test_context_of_fp32_or_tf32_sets_options_of_cuda(project: Project) -> None:
    """Set the options that CUDA reads, on a simulated device called cuda."""
    project.write(conftest=SIMULATED.replace('"simulated"', '"cuda"'), test_it=KINDS)
    result = project.here("--amp-device=cuda", "--amp-dtype=bf16", "-v")
    result.assert_outcomes(passed=2, deselected=1)


WIDE = """
import pytest

MADE = []


@pytest.fixture(scope="session")
def model(amp_device, amp_dtype):
    MADE.append(str(amp_dtype))
    return str(amp_dtype)


@pytest.fixture(scope="module")
def region(amp_autocast, amp_scaler, amp_precision, model):
    return model


def test_one(model, region, amp_dtype):
    assert model == region == str(amp_dtype)


@pytest.mark.parametrize("n", [1, 2])
def test_two(region, amp, n):
    assert region == str(amp.dtype)


@pytest.mark.amp(dtypes=["fp32"])
def test_three(model, amp_precision):
    assert model == "torch.float32"


@pytest.mark.amp(dtypes=["fp32", "bf16"])
def test_four(model, amp_precision):
    assert model == str(amp_precision.dtype)


def test_all():
    assert sorted(MADE) == ["torch.bfloat16", "torch.float16", "torch.float32"]
"""


def test_wider_fixtures_are_created_once_for_each_target(project: Project) -> None:
    project.write(test_it=WIDE)
    result = project.here(*ON_CPU, "-v")
    result.assert_outcomes(passed=10, deselected=3)


def test_fixture_requested_by_name_at_run_time_fails(project: Project) -> None:
    project.write(test_it="def test_it(request):\n    request.getfixturevalue('amp')\n\n\ndef test_plain():\n    pass")
    result = project.here(*ON_CPU)
    result.assert_outcomes(passed=1, failed=1)


INDIRECT = """
import pytest


@pytest.mark.parametrize({arguments})
def test_it(amp_device, amp_dtype):
    pass
"""


@pytest.mark.parametrize(
    "arguments",
    [
        "'amp_device', ['cuda'], True",
        "'amp_device, amp_dtype', [('cuda', 1)], indirect=['amp_device']",
        "argnames=['amp_device'], argvalues=['cuda'], indirect=True",
    ],
)
def test_indirect_value_for_a_fixture_that_takes_none_is_refused(project: Project, arguments: str) -> None:
    """Refuse the value, which nothing reads: ``test_it[cpu-bf16-cuda]`` would be green on a CPU."""
    project.write(test_it=INDIRECT.format(arguments=arguments))
    line = refused(project.here(*ON_CPU))
    assert line.startswith("test_it.py::test_it: parametrize gives amp_device values, and the fixture takes none: ")


def test_fixture_of_a_project_can_take_indirect_values(project: Project) -> None:
    fixture = "@pytest.fixture\ndef amp_device(request, amp_device):\n    return amp_device, request.param\n"
    conftest = f"import pytest\n\n\n{fixture}"
    test = INDIRECT.format(arguments="'amp_device', ['cuda'], indirect=True").replace("pass", "assert amp_device[1]")
    project.write(conftest=conftest, test_it=test)
    project.here(*ON_CPU).assert_outcomes(passed=2)
    project.write(conftest="", test_it=conftest + test)
    project.here(*ON_CPU).assert_outcomes(passed=2)


OBSERVE = """
from pytest_amp.record import Kind, Observation, Verdict


def test_it(amp):
    made = amp.observe("softmax.int/x", "fp32", kind="rule")
    key = f"project/cpu/{amp.precision.name}/softmax.int/x"
    assert made == Observation(key, Kind.RULE, "fp32", verdict=Verdict.PASS, test="test_it::test_it")
    assert (made.family, made.target) == ("project", ("cpu", amp.precision.name))
    made = amp.observe("error", 0.5, kind="error", unit="relative", allowed=1.0)
    assert (made.unit, made.allowed) == ("relative", 1.0)
"""


def test_observe_returns_the_observation(project: Project) -> None:
    project.write(test_it=OBSERVE)
    project.here(*ON_CPU).assert_outcomes(passed=2)


def test_classes_and_unittest_and_doctests_pass(project: Project) -> None:
    project.write(
        test_it="import unittest\n\n\nclass TestIt:\n    def test_it(self, amp):\n        assert amp.dtype\n\n\n"
        "class Case(unittest.TestCase):\n    def test_plain(self):\n        pass\n",
        test_doc='def nothing():\n    """\n    >>> 1 + 1\n    2\n    """\n',
    )
    project.here(*ON_CPU, "--doctest-modules").assert_outcomes(passed=4)


CASE = """
import pytest
import torch


@pytest.fixture
def case(amp):
    return amp.case(lambda: torch.nn.Linear(8, 8), lambda: torch.randn(4, 8), lambda m, b: m(b).float().square().mean())
"""
CHECKS = """

@pytest.mark.parametrize("call", ["check_gradients(case)", "check_dtypes(case, {'': amp.dtype})",
                                  "check_speedup(case, floor=1.0, versus='tf32')"])
def test_it(amp, case, call):
    with amp.autocast():
        eval("amp." + call)


@pytest.fixture(scope="module")
def left_on():
    torch.set_autocast_enabled("cpu", True)
    yield
    torch.set_autocast_enabled("cpu", False)


def test_wider(left_on, amp, case):
    amp.check_gradients(case)
"""


def test_checks_are_refused_under_autocast(project: Project) -> None:
    """Refuse checks in a region of an outer scope, too, in which their reference would not be float32."""
    project.write(test_it=CASE + CHECKS)
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16")
    result.assert_outcomes(failed=4)
    for check in ("check_gradients", "check_dtypes", "check_speedup"):
        message = f"AmpFailure: {check} was called while autocast(cpu) is on, and has no float32 to compare with"
        assert message in result.outlines


NAMED = """

@pytest.mark.parametrize("n", [1, 2])
def test_many(amp, case, n):
    amp.observe(f"{case.name}/x", n, kind="count")


def test_one(amp, case):
    amp.observe(f"{case.name}/x", 0, kind="count")


class TestIt:
    def test_one(self, amp, case):
        amp.observe(f"{case.name}/x", 0, kind="count")
"""


def test_case_is_named_after_its_test_and_parameters(project: Project) -> None:
    """Otherwise the parameters of one test would share their keys."""
    project.write(test_it=CASE + NAMED)
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16", "--amp-record=new.json")
    assert result.ret == 0, result.outlines
    names = [key.removeprefix("project/cpu/bf16/") for key in project.observed("new.json")]
    assert names == ["TestIt::test_one/x", "many[1]/x", "many[2]/x", "one/x"]


def test_folder_with_brackets_in_its_name_is_recorded(project: Project) -> None:
    project.file(
        "tests[1]/test_in.py", CASE + "\n\ndef test_it(amp, case):\n    amp.observe(case.name, 1, kind='count')\n"
    )
    project.here(*ON_CPU, "--amp-record=new.json").assert_outcomes(passed=2)
    actual = {item["key"]: item["test"] for item in project.observations("new.json")}
    assert actual == dict.fromkeys(("project/cpu/bf16/it", "project/cpu/fp16/it"), "tests[1]/test_in::test_it")
