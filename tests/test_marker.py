"""The markers amp, amp_parametrize and amp_long."""

from __future__ import annotations

import itertools

import pytest

from pytest_amp.markers import AmpMarker
from pytest_amp.precision import BF16, FP16, FP32
from tests.project import SIMULATED, Project, ids, red, refused, summary

ON_CPU = ("--amp-device=cpu", "--amp-dtype=bf16,fp16")


def marked(arguments: str, *, fixture: str = "amp") -> str:
    return f"import pytest\n\n\n@pytest.mark.amp({arguments})\ndef test_it({fixture}):\n    pass\n"


def collected(project: Project, *arguments: str) -> list[str]:
    result = project.here("--collect-only", "-q", *arguments)
    assert result.ret in (0, 5), result.outlines
    return ids(result)


@pytest.mark.parametrize("fixture", ["amp", "amp_device", "tmp_path"])
def test_unknown_keyword_is_refused_with_its_test(project: Project, fixture: str) -> None:
    project.write(test_it=marked("device=['cpu']", fixture=fixture), test_plain="def test_plain():\n    pass")
    assert refused(project.here(*ON_CPU)) == (
        "test_it.py::test_it (marker amp): unknown keyword 'device'; "
        "expected devices, dtypes, fake, tolerance, floor, xfail"
    )


def test_unknown_keyword_is_refused_under_workers(project: Project) -> None:
    project.write(test_it=marked("device=['cpu']"), test_other=marked("fake=1"), test_plain="def test_plain(): pass")
    result = project.apart(*ON_CPU, "-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    errors = [line for line in result.errlines if line.startswith("ERROR: ")]
    assert [line.split(" (")[0] for line in errors] == [
        "ERROR: test_it.py::test_it",
        "ERROR: test_other.py::test_it",
    ]
    result.assert_outcomes()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("'cuda'", "amp takes keywords only, got 'cuda'; expected devices, "),
        ("devices='cuda:1'", "devices='cuda:1' is not a device type; expected a type without an index, such as 'cuda'"),
        ("devices=['fake:cuda']", "devices='fake:cuda' is not a device type"),
        ("devices=1", "devices=1 is not a list of names"),
        ("devices=[1]", "devices=[1] is not a list of names"),
        ("dtypes=['fp8']", "dtypes='fp8' is not a precision; expected bf16, fp16, "),
        ("dtypes=16", "dtypes=16 is not a list of names"),
        ("dtypes=[]", "dtypes=[] names none, so that the test runs nowhere; expected ['bf16']"),
        ("devices=()", "devices=() names none, so that the test runs nowhere; expected ['cuda']"),
        ("fake='yes'", "fake='yes' is not a boolean; expected True or False"),
        ("tolerance=0", "tolerance=0 is not a number above 0; expected 0.5, 1.0"),
        ("tolerance='1'", "tolerance='1' is not a number above 0"),
        ("tolerance=float('nan')", "tolerance=nan is not a number above 0"),
        ("floor=True", "floor=True is not a number above 0"),
        ("floor=float('inf')", "floor=inf is not a number above 0"),
        ("xfail='cpu'", "xfail='cpu' is not a dictionary such as {'cuda-fp16': 'owner/repo#123'}"),
        ("xfail={'cpu-fp16': 1}", "xfail={'cpu-fp16': 1} is not a dictionary"),
        ("xfail={'cpu-fp8': 'a/b#1'}", "xfail key 'cpu-fp8' is not a device type or a device type and precision"),
        ("xfail={'fake-cuda': 'a/b#1'}", "xfail key 'fake-cuda' is not a device type or "),
        ("xfail={'fp16': 'a/b#1', 'Cpu': ''}", "xfail key 'Cpu' is not a device type or "),
        ("xfail={'cpu': ' '}", "xfail['cpu'] names no report"),
    ],
)
def test_bad_value_is_refused_with_its_test(project: Project, arguments: str, problem: str) -> None:
    project.write(test_it=marked(arguments))
    line = refused(project.here(*ON_CPU))
    assert line.startswith(f"test_it.py::test_it (marker amp): {problem}")


def test_bad_mark_of_one_parameter_is_refused(project: Project) -> None:
    mark = "pytest.param(1, marks=pytest.mark.amp(nope=1))"
    project.write(
        test_it=f"import pytest\n\n\n@pytest.mark.parametrize('n', [{mark}])\ndef test_it(amp, n):\n    pass\n"
    )
    line = refused(project.here("--amp-device=cpu", "--amp-dtype=bf16"))
    assert "test_it[" in line
    assert "(marker amp): unknown keyword 'nope'" in line


def test_marks_of_one_parameter_apply_to_it_alone(project: Project) -> None:
    values = "pytest.param(1, marks=pytest.mark.amp(dtypes=['fp16'])), pytest.param(2, marks=pytest.mark.amp(xfail=X))"
    body = "    assert n == 1"
    project.write(
        test_it=f"import pytest\n\nX = {{'cpu-bf16': 'a/b#1'}}\n\n\n"
        f"@pytest.mark.parametrize('n', [{values}])\ndef test_it(amp, n):\n{body}\n"
    )
    project.here(*ON_CPU).assert_outcomes(passed=1, xfailed=1, failed=1, deselected=1)


def test_devices_limit_a_test(project: Project) -> None:
    project.write(conftest=SIMULATED, test_it=marked("devices=['simulated', 'xpu'], fake=True"))
    option = "--amp-device=cpu,simulated,fake:xpu,fake:cuda"
    assert sorted(collected(project, option, "--amp-dtype=bf16")) == ["fake-xpu-bf16", "simulated-bf16"]
    result = project.here(option, "--amp-dtype=bf16")
    assert "not run   1 (not for cpu)" in summary(result)
    assert "not run   1 (not for cuda)" in summary(result)


def test_dtypes_limit_a_test(project: Project) -> None:
    project.write(test_it=marked("dtypes=['half']"))
    assert collected(project, *ON_CPU) == ["cpu-fp16"]
    assert collected(project, "--amp-device=cpu", "--amp-dtype=bf16") == []


def test_wide_precisions_need_the_marker(project: Project) -> None:
    project.write(test_it=marked("dtypes=['fp32', 'tf32', 'bf16']", fixture="amp_precision"))
    assert collected(project, *ON_CPU) == ["cpu-bf16", "cpu-fp32"]  # TF32 is CUDA's
    project.write(test_it="def test_it(amp_precision):\n    pass")
    assert collected(project, *ON_CPU) == ["cpu-bf16", "cpu-fp16"]


def test_closest_mark_overrides_the_others(project: Project) -> None:
    project.write(
        test_it="import pytest\n\npytestmark = pytest.mark.amp(fake=True, dtypes=['bf16'])\n\n\n"
        "@pytest.mark.amp(dtypes=['fp16'])\nclass TestIt:\n    def test_it(self, amp):\n        pass\n"
    )
    assert collected(project, "--amp-device=fake:cuda") == ["fake-cuda-fp16"]


def test_merged_marker_has_defaults() -> None:
    marks = [pytest.mark.amp(dtypes="fp16", tolerance=2).mark, pytest.mark.amp(dtypes=["bf16"], devices=("cpu",)).mark]
    assert AmpMarker.merged(marks) == AmpMarker(devices=("cpu",), dtypes=(FP16,), tolerance=2.0)
    assert AmpMarker.merged([]) == AmpMarker()
    wide = AmpMarker.merged([pytest.mark.amp(dtypes=["fp32", "bfloat16"]).mark]).dtypes
    assert wide == (FP32, BF16)


def test_marker_passes_tolerance_and_floor_to_its_test(project: Project) -> None:
    project.write(
        test_it="import pytest\n\n\n@pytest.mark.amp(tolerance=0.5, floor=1.25)\ndef test_it(amp):\n"
        "    assert (amp._marker.tolerance, amp._marker.floor) == (0.5, 1.25)"
    )
    project.here(*ON_CPU).assert_outcomes(passed=2)


XFAIL = """
import pytest


@pytest.mark.amp(fake=True, xfail={xfail})
def test_it(amp):
    assert amp.precision.name in {good}
"""


def test_xfail_of_a_target_is_expected(project: Project) -> None:
    project.write(test_it=XFAIL.format(xfail="{'cpu-fp16': 'pytorch/pytorch#1 wrong'}", good=("bf16",)))
    result = project.here(*ON_CPU, "-rx")
    result.assert_outcomes(passed=1, xfailed=1)
    result.stdout.fnmatch_lines(["XFAIL test_it.py::test_it[[]cpu-fp16[]] - pytorch/pytorch#1 wrong"])
    assert "ran       cpu-fp16  project 1 xfailed" in summary(result)
    assert result.ret == 0


def test_xfail_that_passes_is_red(project: Project) -> None:
    project.write(test_it=XFAIL.format(xfail="{'cpu': 'pytorch/pytorch#1'}", good=("bf16", "fp16")))
    result = project.here(*ON_CPU)
    assert result.parseoutcomes() == {"fixed": 2}
    causes = [line for line in summary(result) if line.startswith("cause")]
    message = "fixed upstream: 2 tests on cpu in bf16, fp16: pytorch/pytorch#1 passes on cpu-bf16; remove the xfail"
    assert causes == [f"cause     {message}"]
    assert result.ret == 1


def test_xfail_of_a_device_does_not_cover_its_fake(project: Project) -> None:
    project.write(test_it=XFAIL.format(xfail="{'cuda': 'pytorch/pytorch#1', 'cuda-bf16': 'a/b#2'}", good=("fp16",)))
    result = project.here("--amp-device=fake:cuda")
    result.assert_outcomes(passed=1, failed=1)


EACH = """
import pytest


def names(target):
    assert target.device.key and target.precision.name
    return {values}


@pytest.mark.amp(fake=True)
@pytest.mark.amp_parametrize("operator", names)
def test_it(amp, operator):
    assert operator
    amp.observe(operator, operator, kind="rule")
"""


def test_values_can_depend_on_the_target(project: Project) -> None:
    values = "['softmax.int'] if target.device.type == 'cpu' else ['mm', pytest.param('exp', id='e')]"
    project.write(test_it=EACH.format(values=values))
    result = project.here("--amp-device=cpu,fake:cuda", "--amp-dtype=bf16", "-v")
    result.assert_outcomes(passed=3)
    for name in ("cpu-bf16-softmax.int", "fake-cuda-bf16-mm", "fake-cuda-bf16-e"):
        assert f"test_it[{name}] PASSED" in result.stdout.str()


def test_tests_of_one_file_and_device_run_one_after_another(project: Project) -> None:
    text = EACH.format(values="['mm', 'exp', 'softmax.int']")
    more = "\n\ndef test_plain():\n    pass\n"
    project.write(test_a=text + more, test_b=text)
    result = project.here("--collect-only", "-q", "--amp-device=cpu,fake:cuda", "--amp-dtype=bf16")
    actual = [line for line in result.outlines if "::test_it" in line]
    assert len(actual) == 12
    groups = [(line.partition("::")[0], "fake" in line) for line in actual]
    assert [group for group, _ in itertools.groupby(groups)] == list(dict.fromkeys(groups)), actual
    assert "test_a.py::test_plain" in result.outlines


def test_marks_of_values_apply(project: Project) -> None:
    project.write(test_it=EACH.format(values="['mm', pytest.param('', id='e', marks=pytest.mark.xfail(strict=True))]"))
    project.here("--amp-device=cpu", "--amp-dtype=bf16").assert_outcomes(passed=1, xfailed=1)


def test_empty_list_of_values_is_red(project: Project) -> None:
    project.write(test_it=EACH.format(values="[]"))
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16")
    result.assert_outcomes(skipped=1)
    assert result.ret == 1
    assert red(result) == ["project on cpu-bf16: 1 selected, not one executed: nothing to check on cpu-bf16 (1)"]


def test_values_are_not_computed_for_other_devices(project: Project) -> None:
    project.write(test_it=EACH.format(values="[1 / 0]").replace("fake=True", "devices=['xpu']"))
    assert collected(project, "--amp-device=cpu", "--amp-dtype=bf16") == []


def test_id_of_a_value_is_the_same_in_every_run(project: Project) -> None:
    """Keys contain the id: one with an address would differ in each run, and be compared with nothing."""
    values = "[len, str, object(), pytest.param(object(), id=''), lambda x: x, 3, None]"
    project.write(test_it=EACH.format(values=values))
    names = ["len", "str", "operator2", "operator3", "<lambda>", "3", "None"]
    assert collected(project, "--amp-device=cpu", "--amp-dtype=bf16") == [f"cpu-bf16-{name}" for name in names]


def test_parameter_set_with_two_values_is_refused(project: Project) -> None:
    project.write(test_it=EACH.format(values="[pytest.param('mm', 'exp')]"))
    line = refused(project.here("--amp-device=cpu", "--amp-dtype=bf16"))
    assert line.startswith("test_it.py::test_it: the function of amp_parametrize returned ParameterSet(")
    assert line.endswith("for cpu-bf16; expected one value each")


def test_function_of_values_that_raises_is_red(project: Project) -> None:
    project.write(test_it=EACH.format(values="[1 / 0]"), test_plain="def test_plain():\n    pass")
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*ZeroDivisionError*"])


@pytest.mark.parametrize("arguments", ["'operator'", "names, 'operator'", "'operator', ['mm']", "'a', names, id='x'"])
def test_wrong_arguments_of_amp_parametrize_are_refused(project: Project, arguments: str) -> None:
    text = EACH.format(values="['mm']").replace('amp_parametrize("operator", names)', f"amp_parametrize({arguments})")
    project.write(test_it=text)
    line = refused(project.here(*ON_CPU))
    assert line.endswith("amp_parametrize takes an argument's name and a function of the target")


def test_function_of_values_without_target_parameter_is_refused(project: Project) -> None:
    text = EACH.format(values="['mm']").replace("names)", "lambda: ['mm'])")
    project.write(test_it=text)
    result = project.here(*ON_CPU)
    line = refused(result)
    assert "the function of amp_parametrize is called with the target: too many positional arguments" in line
    assert line.startswith("test_it.py::test_it (marker amp")


def test_values_are_combined_with_other_parameters(project: Project) -> None:
    text = EACH.format(values="['mm', 'exp']").replace("def test_it(amp, operator)", "def test_it(amp, operator, n)")
    text = text.replace("@pytest.mark.amp(fake=True)", "@pytest.mark.parametrize('n', [1, 2])")
    project.write(test_it=text)
    assert len(collected(project, "--amp-device=cpu", "--amp-dtype=bf16")) == 4


@pytest.mark.parametrize("keywords", ["devices=['cdua']", "xfail={'gpu-fp16': 'a/b#1'}"], ids=["devices", "xfail"])
def test_unknown_device_type_is_refused(project: Project, keywords: str) -> None:
    """Otherwise the test would run nowhere, or its expected failure never apply, without a message."""
    project.write(test_it=f"import pytest\n\n\n@pytest.mark.amp({keywords})\ndef test_it(amp):\n    pass\n")
    result = project.here("--amp-device=cpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (line,) = [line for line in result.errlines + result.outlines if line.startswith("ERROR: ")]
    assert "test_it.py::test_it (marker amp)" in line
    assert "is not a device type; expected cpu, cuda" in line


def test_dtypes_of_torch_are_accepted() -> None:
    torch = pytest.importorskip("torch")
    mark = pytest.mark.amp(dtypes=[torch.bfloat16, "fp16"]).mark
    assert AmpMarker.merged([mark]).dtypes == (BF16, FP16)
    with pytest.raises(ValueError, match=r"is not a list of names; expected a list such as \['bf16'\]"):
        AmpMarker.merged([pytest.mark.amp(dtypes=[3]).mark])


@pytest.mark.parametrize("keyword", ["devices=['cuda']", "dtypes=['bf16']", "fake=True", "xfail={'cpu': 'a/b#1'}"])
def test_marker_without_an_amp_fixture_is_refused(project: Project, keyword: str) -> None:
    """Refuse the keyword, since a test without an amp fixture runs once, on any device."""
    project.write(test_it=marked(keyword, fixture="tmp_path"))
    name = keyword.partition("=")[0]
    assert refused(project.here(*ON_CPU)) == (
        f"test_it.py::test_it (marker amp): {name}= does nothing for a test without an amp fixture; "
        "expected an argument of the test, such as amp or amp_device"
    )


def test_marker_of_a_module_passes_for_tests_without_a_fixture(project: Project) -> None:
    project.write(
        test_it="""
        import pytest

        pytestmark = pytest.mark.amp(devices=["cpu"])


        @pytest.mark.amp
        def test_plain():
            pass


        def test_it(amp):
            pass
        """
    )
    project.here(*ON_CPU).assert_outcomes(passed=3)
