"""What a test or a hook asks for and cannot have: the test's own line and one line that says what is valid."""

from __future__ import annotations

import re

import pytest

from tests.project import Project, refused

ON_CPU = ("--amp-device=cpu", "--amp-dtype=bf16")

HEAD = """
import pytest
import torch


def case(amp, build=lambda: torch.nn.Linear(4, 4), batch=lambda: torch.randn(2, 4), loss=lambda m, x: m(x).sum()):
    return amp.case(build, batch, loss)


def test_it(amp):
    {line}
"""


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("amp.observe('x', 1, kind='number')", "kind='number' is no kind of observation; valid: rule, dtype, *"),
        ("amp.observe('', 1, kind='count')", "'project/cpu/bf16/' is not an observation key; *"),
        ("amp.observe('x', object(), kind='count')", "*object*"),
        ("case(amp, build=torch.nn.Linear(4, 4))", "build is Linear; valid: a function that makes it, *"),
        ("case(amp, batch=torch.ones(2))", "batch is Tensor; valid: a function that makes it, *"),
        ("case(amp, loss=None)", "loss is NoneType; valid: a function of the model and the batch, *"),
        ("amp.check_dtypes(case(amp), {'head': torch.float32})", "it has no module 'head'; it has '', the model*"),
        ("amp.check_dtypes(case(amp), {'': 'bf16'})", "'bf16' is no dtype; valid: torch.float32, *"),
        ("amp.check_gradients(case(amp, build=lambda: 3))", "case it: build made int, not a torch.nn.Module"),
        ("amp.check_gradients(case(amp, loss=lambda m, x: m(x)))", "the loss has shape [[]2, 4], it must have *"),
        ("amp.check_gradients(case(amp, loss=lambda m, x: 3.0))", "the loss is float; valid: a tensor, *"),
        (
            "amp.check_gradients(torch.nn.Linear(4, 4))",
            "check_gradients takes a case; this is of type Linear; amp.case*",
        ),
        ("amp.trace(torch.nn.Linear(4, 4))", "trace takes a case; this is of type Linear; amp.case*"),
        ("amp.missing('gpu', 'it is not here')", "'gpu' is nothing that may be missing; valid: device, dtype, *"),
        ("amp.check_dtypes(case(amp), ['head'])", "check_dtypes was given list; valid: a dictionary such as *"),
        ("amp.check_dtypes(case(amp), {})", "check_dtypes was given no module; valid: a dictionary such as *"),
        (
            "amp.check_dtypes(torch.nn.Linear(4, 4), {})",
            "check_dtypes takes a case; this is of type Linear; amp.case*",
        ),
        ("amp.check_gradients(case(amp), tolerance=-1)", "tolerance=-1; valid: a finite number, above 0"),
        ("amp.check_fp32(3.0)", "check_fp32 was given float; valid: a tensor"),
        ("amp.check_speedup(case(amp), floor=1.0, over='tf33')", "over='tf33' is no kind of float32; valid: fp32, *"),
        ("amp.check_speedup(case(amp), floor=-1.0, over='tf32')", "floor=-1.0; valid: a finite number, 0 or more"),
        ("amp.check_speedup(case(amp), floor='1', over='tf32')", "floor='1'; valid: a finite number, 0 or more"),
        ("amp.check_speedup(case(amp), floor=True, over='tf32')", "floor=True; valid: a finite number, 0 or more"),
        ("amp.check_speedup(case(amp), over=['tf32'])", "over=[[]'tf32'] is no kind of float32; valid: fp32, *"),
        (
            "amp.check_speedup(case(amp), over='fp32', kind=None)",
            "kind=None is nothing that is timed; valid: *",
        ),
        ("amp.check_speedup(case(amp), over='fp32', seconds=0)", "seconds=0; valid: a finite number, above 0"),
        ("amp.check_speedup(case(amp), over='fp32', ceiling=0)", "ceiling=0; valid: a finite number, above 0"),
        ("amp.check_speedup(case(amp), over='fp32', uncalibrated='1')", "uncalibrated='1'; valid: a finite number, *"),
        (
            "amp.check_speedup(torch.nn.Linear(4, 4), over='fp32')",
            "check_speedup was given Linear; valid: what amp.case*",
        ),
        ("amp.check_speedup(None, over='fp32')", "check_speedup was given NoneType; valid: what amp.case*"),
        ("amp.check_speedup(lambda: None, over='fp32')", "<lambda> returned NoneType; valid: the call to be timed, *"),
        ("amp.check_speedup(lambda: print, over='fp32', optimizer=print)", "optimizer= beside a function, which *"),
        (
            "amp.check_speedup(case(amp), over='fp32', optimizer=3)",
            "optimizer is of type int; valid: a function *",
        ),
        (
            "amp.check_speedup(case(amp), over='fp32', optimizer=list)",
            "optimizer made of type list; valid: a torch.o*",
        ),
        ("amp.check_compiled(torch.nn.Linear(4, 4))", "check_compiled takes a case; this is of type Linear; amp.case*"),
        (
            "amp.check_scaler(case(amp, build=lambda: torch.nn.Linear(4, 4).half()))",
            "case it: weight is float16, and no scaler *",
        ),
        ("amp.check_casts(torch.nn.Linear(4, 4))", "check_casts takes a case; this is of type Linear; amp.case*"),
        ("amp.check_casts(case(amp), most=2.5)", "most=2.5; valid: a whole number, 0 or more"),
        ("amp.check_memory(lambda: None)", "check_memory takes a case; this is of type function; amp.case*"),
        ("amp.check_memory(case(amp), ceiling='1')", "ceiling='1'; valid: a finite number, 0 or more"),
        ("amp.check_memory(case(amp), peak_ceiling=-1)", "peak_ceiling=-1; valid: a finite number, 0 or more"),
        ("amp.observe('x', 1, kind='count', allowed='3')", "x: allowed='3'; valid: a number"),
        ("amp.observe('x', 1.0, kind='ratio', interval=(2, 3))", "x: interval=(2, 3); valid: two numbers with 1.0 *"),
    ],
)
def test_a_wrong_argument_is_shown_at_the_tests_own_line(project: Project, line: str, says: str) -> None:
    project.write(test_it=HEAD.format(line=line))
    result = project.here(*ON_CPU, "--amp-speed=report")
    result.assert_outcomes(failed=1)
    shown = [text for text in result.outlines if text.startswith("E  ")]
    assert len(shown) == 1
    result.stdout.fnmatch_lines([f"E*pytest_amp.failure.Misuse: {says}"])
    places = [text for text in result.outlines if re.fullmatch(r"\S+\.py:\d+: .*", text)]
    assert places
    assert all(text.startswith("test_it.py:") for text in places)


def test_without_an_autocast_dtype_there_is_nothing_to_check(project: Project) -> None:
    line = "amp.check_gradients(case(amp))"
    marked = HEAD.format(line=line).replace("def test_it", "@pytest.mark.amp(dtypes=['fp32'])\ndef test_it")
    project.write(test_it=marked)
    result = project.here("--amp-device=cpu")
    result.assert_outcomes(failed=1)
    says = "check_gradients needs an autocast dtype, and this test runs in fp32; valid: bf16, fp16"
    result.stdout.fnmatch_lines([f"E*pytest_amp.failure.Misuse: {says}"])


def test_a_case_that_does_not_run_at_all_fails_in_its_own_words(project: Project) -> None:
    line = "amp.check_gradients(case(amp, batch=lambda: torch.randn(2, 3)))"
    project.write(test_it=HEAD.format(line=line))
    result = project.here(*ON_CPU)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*RuntimeError: mat1 and mat2 shapes cannot be multiplied *"])
    result.stdout.no_fnmatch_line("*oracle*")


@pytest.mark.parametrize("returned", ["None", "3", "'mm'"])
def test_amp_parametrize_without_a_list(project: Project, returned: str) -> None:
    project.write(
        test_it=f"""
        import pytest

        @pytest.mark.amp_parametrize("name", lambda target: {returned})
        def test_it(amp, name):
            pass
        """
    )
    assert refused(project.here(*ON_CPU)) == (
        f"test_it.py::test_it: the function of amp_parametrize returned {returned} for cpu-bf16;"
        " valid: a list of values"
    )


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return [3]", "the hook pytest_amp_devices yields 3; valid: a pytest_amp.devices.names.DeviceType"),
        ("return 3", "the hook pytest_amp_devices returned 3; valid: it yields each DeviceType"),
    ],
)
def test_the_hook_for_devices(project: Project, body: str, says: str) -> None:
    project.write(conftest=f"def pytest_amp_devices():\n    {body}\n", test_it="def test_it(amp):\n    pass")
    assert refused(project.apart(*ON_CPU)) == says


def test_the_hook_for_cases(project: Project) -> None:
    project.write(
        conftest="def pytest_amp_cases():\n    yield 3\n",
        test_it="""
        import pytest

        @pytest.mark.amp_parametrize("name", lambda target: [case.name for case in target.added_cases()])
        def test_it(amp, name):
            pass
        """,
    )
    says = "the hook pytest_amp_cases yields 3; valid: a pytest_amp.cases.case.Case"
    assert refused(project.here(*ON_CPU)) == f"test_it.py::test_it: {says}"


@pytest.mark.parametrize(
    "source",
    [
        "def test_it(request):\n    request.getfixturevalue('amp')",
        """
        import unittest, pytest

        @pytest.mark.usefixtures('amp')
        class TestIt(unittest.TestCase):
            def test_it(self):
                pass
        """,
    ],
)
def test_where_a_test_cannot_be_run_once_for_each_device(project: Project, source: str) -> None:
    project.write(test_it=source)
    result = project.here(*ON_CPU)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["an amp fixture runs a test once for each device and dtype, so a test names it as *"])
    result.stdout.no_fnmatch_line("*AttributeError*")


@pytest.mark.parametrize("check", ["check_gradients(it)", "check_scaler(it)", "check_training(it, steps=2)"])
def test_a_loss_that_depends_on_nothing_is_told_in_one_line(project: Project, check: str) -> None:
    project.write(test_it=HEAD.format(line=f"it = case(amp, loss=lambda m, x: m(x).sum().detach()); amp.{check}"))
    result = project.here(*ON_CPU)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["E *: the loss of it depends on nothing that requires a gradient; valid: one that does"]
    )
    assert "trace.py" not in result.stdout.str()


def test_a_case_on_a_fake_device_is_refused(project: Project) -> None:
    """Where a test that asks for fake devices wants more than rules."""
    text = HEAD.format(line="case(amp)").replace("def test_it", "@pytest.mark.amp(fake=True)\ndef test_it")
    project.write(test_it=text)
    result = project.here("--amp-device=fake:cuda", "--amp-dtype=bf16")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["E *Misuse: fake:cuda has rules and no arithmetic, so that no case runs there; valid: *"]
    )
