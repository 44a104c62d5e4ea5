"""Usage errors in a test or a hook: one line at the test's own line, with the expected arguments."""

from __future__ import annotations

import re

import pytest

from tests.project import ON_CPU, Project, refused

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
        ("amp.observe('x', 1, kind='number')", "kind='number' is not a kind of observation; expected rule, dtype, *"),
        ("amp.observe('', 1, kind='count')", "'project/cpu/bf16/' is not an observation key; *"),
        ("amp.observe('x', object(), kind='count')", "*object*"),
        ("case(amp, build=torch.nn.Linear(4, 4))", "build is Linear; expected a function that makes it, *"),
        ("case(amp, batch=torch.ones(2))", "batch is Tensor; expected a function that makes it, *"),
        ("case(amp, loss=None)", "loss is NoneType; expected a function of the model and the batch"),
        ("case(amp, loss=torch.nn.MSELoss())", "loss is MSELoss; expected a function of the model and the batch"),
        (
            "case(amp, batch=lambda model, batch: 0)",
            "batch takes other arguments than none; expected a function that *",
        ),
        (
            "case(amp, loss=lambda batch: 0)",
            "loss takes other arguments than 2; expected a function of the model and *",
        ),
        ("amp.case(list, list, lambda m, x: 0, name=3)", "name=3; expected text"),
        ("amp.case(list, list, lambda m, x: 0, name=' ')", "name=' '; expected printable text that begins and ends *"),
        ("amp.autocast(dtype=torch.float64)", "autocast was given dtype=torch.float64; expected torch.bfloat16, *"),
        ("amp.autocast(dtype='bf16')", "autocast was given dtype='bf16'; expected torch.bfloat16, torch.float16"),
        ("amp.autocast(enabled='no')", "autocast was given enabled='no'; expected True or False"),
        ("amp.autocast(cache_enabled=1)", "autocast was given cache_enabled=1; expected True or False"),
        ("amp.check_training(case(amp), steps=2, fresh='no')", "fresh='no'; expected True or False"),
        ("amp.check_compiled(case(amp), fullgraph='yes')", "fullgraph='yes'; expected True or False"),
        ("amp.check_compiled(case(amp), dynamic='yes')", "dynamic='yes'; expected True or False"),
        (
            "amp.scaler_trace(case(amp), steps=2, overflow_gradients_at=(7,))",
            "overflow_gradients_at=7 of 2 steps; expected iterations from *",
        ),
        (
            "amp.check_memory(case(amp), peak_ceiling=0.9)",
            "peak_ceiling=0.9, and nothing counts peaks on cpu; expected *",
        ),
        (
            "amp.check_scaler(case(amp), train=lambda: None)",
            "train takes other arguments than one; expected a function *",
        ),
        (
            "amp.check_training(case(amp), steps=2, train=lambda: None)",
            "train takes other arguments than one; expected *",
        ),
        ("amp.check_compiled(case(amp), backend='nope')", "backend='nope'; expected eager, aot_eager, *"),
        ("amp.check_compiled(case(amp), mode='nope')", "Unrecognized mode=nope, should be one of: default, *"),
        (
            "amp.check_dtypes(case(amp), {torch.nn.Linear: torch.float32})",
            "<class 'torch.nn*'> is not the path of a module; *",
        ),
        ("amp.check_casts(case(amp), most='9')", "most='9'; expected a whole number, 0 or more"),
        ("amp.record('x', float('nan'))", "x: nan says nothing, and would stay the same; expected a finite number"),
        ("amp.record('x', 1, better='lower', margin='5')", "x: margin='5'; expected a number from 0 *"),
        ("amp.observe('x', 1, kind='count', unit=3)", "project/cpu/bf16/x: unit is '3', not text"),
        ("amp.observe('x', 1, kind='count', allowed=10**400)", "project/cpu/bf16/x: allowed is an integer beyond *"),
        ("amp.observe('x', '\\ud800', kind='state')", "*surrogates not allowed"),
        ("amp.observe('x', 10**5000, kind='count')", "Exceeds the limit *"),
        ("amp.check_dtypes(case(amp), {'head': torch.float32})", "it has no module 'head'; it has '', the model*"),
        ("amp.check_dtypes(case(amp), {'': 'bf16'})", "'bf16' is not a dtype; expected torch.float32, *"),
        ("amp.check_gradients(case(amp, build=lambda: 3))", "case it: build made int, not a torch.nn.Module"),
        ("amp.check_gradients(case(amp, loss=lambda m, x: m(x)))", "the loss has shape [[]2, 4], it must have *"),
        ("amp.check_gradients(case(amp, loss=lambda m, x: 3.0))", "the loss is float; expected a tensor, *"),
        (
            "amp.check_gradients(torch.nn.Linear(4, 4))",
            "check_gradients takes a case; this is of type Linear; amp.case*",
        ),
        ("amp.trace(torch.nn.Linear(4, 4))", "trace takes a case; this is of type Linear; amp.case*"),
        (
            "amp.missing('gpu', 'it is not here')",
            "'gpu' is not a requirement that may be missing; expected device, dtype, *",
        ),
        ("amp.check_dtypes(case(amp), ['head'])", "check_dtypes was given list; expected a dictionary such as *"),
        ("amp.check_dtypes(case(amp), {})", "check_dtypes was given no module; expected a dictionary such as *"),
        (
            "amp.check_dtypes(torch.nn.Linear(4, 4), {})",
            "check_dtypes takes a case; this is of type Linear; amp.case*",
        ),
        ("amp.check_gradients(case(amp), tolerance=-1)", "tolerance=-1; expected a finite number, above 0"),
        ("amp.check_fp32(3.0)", "check_fp32 was given float; expected a tensor"),
        (
            "amp.check_speedup(case(amp), floor=1.0, versus='tf33')",
            "versus='tf33' is no kind of float32; expected fp32, *",
        ),
        ("amp.check_speedup(case(amp), floor=-1.0, versus='tf32')", "floor=-1.0; expected a finite number, 0 or more"),
        ("amp.check_speedup(case(amp), floor='1', versus='tf32')", "floor='1'; expected a finite number, 0 or more"),
        ("amp.check_speedup(case(amp), floor=True, versus='tf32')", "floor=True; expected a finite number, 0 or more"),
        ("amp.check_speedup(case(amp), versus=['tf32'])", "versus=[[]'tf32'] is no kind of float32; expected fp32, *"),
        (
            "amp.check_speedup(case(amp), versus='fp32', kind=None)",
            "kind=None is nothing that is timed; expected *",
        ),
        ("amp.check_speedup(case(amp), versus='fp32', seconds=0)", "seconds=0; expected a finite number, above 0"),
        ("amp.check_speedup(case(amp), versus='fp32', ceiling=0)", "ceiling=0; expected a finite number, above 0"),
        (
            "amp.check_speedup(case(amp), versus='fp32', uncalibrated='1')",
            "uncalibrated='1'; expected a finite number, *",
        ),
        (
            "amp.check_speedup(torch.nn.Linear(4, 4), versus='fp32')",
            "check_speedup was given Linear; expected what amp.case*",
        ),
        ("amp.check_speedup(None, versus='fp32')", "check_speedup was given NoneType; expected what amp.case*"),
        (
            "amp.check_speedup(lambda: None, versus='fp32')",
            "<lambda> returned NoneType; expected the call to be timed, *",
        ),
        ("amp.check_speedup(lambda: print, versus='fp32', optimizer=print)", "optimizer= beside a function, which *"),
        (
            "amp.check_speedup(case(amp), versus='fp32', optimizer=3)",
            "optimizer is of type int; expected a function *",
        ),
        (
            "amp.check_speedup(case(amp), versus='fp32', optimizer=list)",
            "optimizer made of type list; expected a torch.o*",
        ),
        ("amp.check_compiled(torch.nn.Linear(4, 4))", "check_compiled takes a case; this is of type Linear; amp.case*"),
        (
            "amp.check_scaler(case(amp, build=lambda: torch.nn.Linear(4, 4).half()))",
            "case it: weight is float16, and no scaler *",
        ),
        ("amp.check_casts(torch.nn.Linear(4, 4))", "check_casts takes a case; this is of type Linear; amp.case*"),
        ("amp.check_casts(case(amp), most=2.5)", "most=2.5; expected a whole number, 0 or more"),
        ("amp.check_memory(lambda: None)", "check_memory takes a case; this is of type function; amp.case*"),
        ("amp.check_memory(case(amp), ceiling='1')", "ceiling='1'; expected a finite number, 0 or more"),
        ("amp.check_memory(case(amp), peak_ceiling=-1)", "peak_ceiling=-1; expected a finite number, 0 or more"),
        ("amp.observe('x', 1, kind='count', allowed='3')", "x: allowed='3'; expected a number"),
        ("amp.observe('x', 1.0, kind='ratio', interval=(2, 3))", "x: interval=(2, 3); expected two numbers with 1.0 *"),
        (
            "amp.observe('x', 1.0, kind='ratio', over_seeds=(2, 3))",
            "x: over_seeds=(2, 3); expected finite numbers, of an error",
        ),
        (
            "amp.observe('x', 1.0, kind='error', over_seeds='ab')",
            "x: over_seeds='ab'; expected finite numbers, of an error",
        ),
    ],
)
def test_wrong_argument_is_reported_at_the_tests_own_line(project: Project, line: str, says: str) -> None:
    project.write(test_it=HEAD.format(line=line))
    result = project.here(*ON_CPU, "--amp-speed=report")
    result.assert_outcomes(failed=1)
    shown = [text for text in result.outlines if text.startswith("E  ")]
    assert len(shown) == 1
    result.stdout.fnmatch_lines([f"E*pytest_amp.failure.AmpUsageError: {says}"])
    places = [text for text in result.outlines if re.fullmatch(r"\S+\.py:\d+: .*", text)]
    assert places
    assert all(text.startswith("test_it.py:") for text in places)


@pytest.mark.parametrize("line", ["check_casts(case(amp), mst=9)", "check_speedup(case(amp), flor=1, versus='fp32')"])
def test_misspelt_keyword_is_reported_in_one_line(project: Project, line: str) -> None:
    """Print Python's own error at the test's own line, without a frame of the plugin."""
    project.write(test_it=HEAD.format(line=f"amp.{line}"))
    result = project.here(*ON_CPU, "--amp-speed=report")
    result.assert_outcomes(failed=1)
    shown = [text for text in result.outlines if text.startswith("E  ")]
    keyword = line.split(", ")[1].partition("=")[0]
    assert len(shown) == 1
    assert f"got an unexpected keyword argument '{keyword}'" in shown[0]
    assert any(text.startswith("test_it.py:") for text in result.outlines)
    assert not any("pytest_amp/" in text for text in result.outlines)


def test_check_in_fp32_is_refused(project: Project) -> None:
    line = "amp.check_gradients(case(amp))"
    marked = HEAD.format(line=line).replace("def test_it", "@pytest.mark.amp(dtypes=['fp32'])\ndef test_it")
    project.write(test_it=marked)
    result = project.here("--amp-device=cpu")
    result.assert_outcomes(failed=1)
    says = "check_gradients needs an autocast dtype, and this test runs in fp32; expected bf16, fp16"
    result.stdout.fnmatch_lines([f"E*pytest_amp.failure.AmpUsageError: {says}"])


@pytest.mark.parametrize("check", ["check_gradients({})", "check_training({}, steps=2)"])
def test_case_that_does_not_run_in_float32_fails_with_its_error(project: Project, check: str) -> None:
    case = "case(amp, batch=lambda: torch.randn(2, 3))"
    project.write(test_it=HEAD.format(line=f"amp.{check.format(case)}"))
    result = project.here(*ON_CPU)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "AmpFailure: it does not run in float32, without autocast",
            "  expected *",
            "  now *RuntimeError (test_it.py:5): mat1 and mat2 shapes cannot be *",
            "  likely *",
            "  rerun *",
        ]
    )
    result.stdout.no_fnmatch_line("*oracle*")
    result.stdout.no_fnmatch_line("*contextlib*")
    assert not [text for text in result.outlines if text.startswith("E  ")]


def test_custom_function_without_casts_fails_with_a_hint(project: Project) -> None:
    project.write(
        test_it="""
        import torch


        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx, a, b):
                ctx.save_for_backward(a, b)
                return a @ b

            @staticmethod
            def backward(ctx, gradient):
                a, b = ctx.saved_tensors
                return gradient @ b.T, a.T @ gradient


        def loss(model, batch):
            return Product.apply(batch, model.weight).sum()


        def test_it(amp):
            amp.check_gradients(amp.case(lambda: torch.nn.Linear(4, 4), lambda: torch.randn(2, 4), loss))
        """
    )
    result = project.here(*ON_CPU)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["AmpFailure: it does not run under autocast(cpu, bfloat16)*", "*custom_fwd*custom_bwd*"]
    )
    assert len(result.outlines) < 30


@pytest.mark.parametrize("returned", ["None", "3", "'mm'"])
def test_amp_parametrize_without_a_list_is_refused(project: Project, returned: str) -> None:
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
        " expected a list of values"
    )


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return [3]", "the hook pytest_amp_devices yields 3; expected a pytest_amp.devices.names.DeviceType"),
        ("return 3", "the hook pytest_amp_devices returned 3; expected that it yields each DeviceType"),
    ],
)
def test_wrong_result_of_the_devices_hook_is_refused(project: Project, body: str, says: str) -> None:
    project.write(conftest=f"def pytest_amp_devices():\n    {body}\n", test_it="def test_it(amp):\n    pass")
    assert refused(project.apart(*ON_CPU)) == says


def test_wrong_result_of_the_cases_hook_is_refused(project: Project) -> None:
    project.write(
        conftest="def pytest_amp_cases():\n    yield 3\n",
        test_it="""
        import pytest

        @pytest.mark.amp_parametrize("name", lambda target: [case.name for case in target.added_cases()])
        def test_it(amp, name):
            pass
        """,
    )
    says = "the hook pytest_amp_cases yields 3; expected a pytest_amp.cases.case.Case"
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
def test_fixture_in_a_test_without_targets_is_refused(project: Project, source: str) -> None:
    project.write(test_it=source)
    result = project.here(*ON_CPU)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["an amp fixture runs a test once for each device and dtype, so a test names it as *"])
    result.stdout.no_fnmatch_line("*AttributeError*")


DOES_NOT_RUN = """
import torch


class Narrow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if x.dtype is not torch.float32:
            raise RuntimeError("no kernel for this dtype")
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_it(amp):
    case = amp.case(lambda: torch.nn.Linear(4, 4), lambda: torch.randn(2, 4), lambda m, x: Narrow.apply(m(x)).sum())
    amp.{check}
"""
CHECKS = (
    "check_casts(case)",
    "check_memory(case)",
    "check_scaler(case)",
    "trace(case)",
    "check_dtypes(case, {'': amp.dtype})",
    "check_compiled(case, backend='eager')",
)
TRAINING = "check_training(case, steps=20, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))"


@pytest.mark.parametrize("check", [*CHECKS, TRAINING, "scaler_trace(case, steps=2)"])
def test_case_that_does_not_run_under_autocast_fails_once(project: Project, check: str) -> None:
    project.write(test_it=DOES_NOT_RUN.format(check=check))
    run = project.apart if "compiled" in check else project.here  # torch's compiler cannot be imported twice
    result = run(*ON_CPU)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "AmpFailure: it does not run under autocast(cpu, bfloat16)",
            "  now *RuntimeError (test_it.py:8): no kernel for *",
        ]
    )
    assert sum("no kernel" in text for text in result.outlines) == 1
    result.stdout.no_fnmatch_line("*above exception*")


@pytest.mark.parametrize(
    "message", ["\"mish\" not implemented for 'Half'", "could not create a primitive descriptor for the LSTM"]
)
def test_missing_kernel_is_named_as_the_likely_cause(project: Project, message: str) -> None:
    text = DOES_NOT_RUN.replace("no kernel for this dtype", message.replace('"', '\\"'))
    project.write(test_it=text.format(check="check_casts(case)"))
    result = project.here(*ON_CPU)
    result.stdout.fnmatch_lines(["  likely *this machine has no kernel for one of its operators in bf16: dtypes= *"])


LOOPS = ("check_scaler(it)", "check_training(it, steps=2)")


@pytest.mark.parametrize("check", ["check_gradients(it)", "check_casts(it)", "check_memory(it)", *LOOPS])
def test_loss_without_a_gradient_is_refused_in_one_line(project: Project, check: str) -> None:
    project.write(test_it=HEAD.format(line=f"it = case(amp, loss=lambda m, x: m(x).sum().detach()); amp.{check}"))
    result = project.here(*ON_CPU)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["E *: the loss of it depends on nothing that requires a gradient; expected one that does"]
    )
    assert "trace.py" not in result.stdout.str()


def test_case_on_a_fake_device_is_refused(project: Project) -> None:
    """Refuse the case in a test that requests fake devices, which have rules alone."""
    text = HEAD.format(line="case(amp)").replace("def test_it", "@pytest.mark.amp(fake=True)\ndef test_it")
    project.write(test_it=text)
    result = project.here("--amp-device=fake:cuda", "--amp-dtype=bf16")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["E *AmpUsageError: fake:cuda has rules and no arithmetic, so that no case runs there; expected *"]
    )
