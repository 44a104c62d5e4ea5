"""Runs whose checks could not run are red, and report the missing parts."""

from __future__ import annotations

import pytest

from tests.project import ON_CPU, SIMULATED, Project, red, summary

PASSING = "def test_it(amp):\n    pass\n"
SKIPPING = "import pytest\n\n\ndef test_it(amp):\n    pytest.skip({reason!r})\n"
FAMILY = "from pytest_amp.families import Family\n\nFAMILY = Family({name!r})\n"


def family(project: Project, name: str, **tests: str) -> None:
    project.file(f"{name}/__init__.py", FAMILY.format(name=name))
    for test, text in tests.items():
        project.file(f"{name}/{test}.py", text)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_run_with_only_skips_is_red(project: Project, workers: str) -> None:
    project.write(test_it=SKIPPING.format(reason="no driver"))
    result = project.run("--amp-device=cpu", "-n", workers)
    result.assert_outcomes(skipped=2)
    assert result.ret == 1
    assert red(result) == [
        "project on cpu-bf16: 1 selected, not one executed: no driver (1)",
        "project on cpu-fp16: 1 selected, not one executed: no driver (1)",
    ]


def test_family_with_only_skips_is_red(project: Project) -> None:
    family(project, "rules", test_rules=PASSING)
    family(
        project, "gradients", test_gradients=SKIPPING.format(reason="no model"), test_more=SKIPPING.format(reason="x")
    )
    result = project.here(*ON_CPU)
    result.assert_outcomes(passed=1, skipped=2)
    assert (result.ret, red(result)) == (
        1,
        ["gradients on cpu-bf16: 2 selected, not one executed: no model (1); x (1)"],
    )
    assert project.here(*ON_CPU, "rules").ret == 0


def test_family_with_one_executed_check_is_green(project: Project) -> None:
    project.write(test_it=SKIPPING.format(reason="no driver"), test_other=PASSING)
    assert project.here(*ON_CPU).ret == 0


def test_target_with_only_skips_is_red(project: Project) -> None:
    project.write(
        test_it="import pytest\n\n\ndef test_it(amp):\n    if amp.precision.name == 'fp16':\n        pytest.skip('x')"
    )
    result = project.here("--amp-device=cpu")
    assert (result.ret, red(result)) == (1, ["project on cpu-fp16: 1 selected, not one executed: x (1)"])


def test_run_with_only_inconclusive_checks_is_red(project: Project) -> None:
    project.write(test_it=SKIPPING.format(reason="inconclusive: too noisy"))
    result = project.here(*ON_CPU)
    assert "ran       cpu-bf16  project 1 inconclusive" in summary(result)
    assert (result.ret, red(result)) == (
        1,
        ["project on cpu-bf16: 1 selected, not one executed: inconclusive: too noisy (1)"],
    )


@pytest.mark.parametrize(
    "mark", ["skip(reason='x')", "skipif(True, reason='x')", "xfail(run=False, reason='x')", "xfail(reason='x')"]
)
def test_run_whose_marks_keep_all_tests_from_running_is_red(project: Project, mark: str) -> None:
    """Run four marks; the last one is green, since an expected failure has executed its checks."""
    project.write(test_it=f"import pytest\n\n\n@pytest.mark.{mark}\ndef test_it(amp):\n    assert False\n")
    result = project.here(*ON_CPU)
    assert result.ret == (0 if mark.startswith("xfail(reason") else 1)


def test_expected_failure_of_a_fixture_is_no_executed_check(project: Project) -> None:
    project.write(
        test_it="import pytest\n\n\n@pytest.fixture\ndef broken():\n    raise RuntimeError\n\n\n"
        "@pytest.mark.xfail(reason='known')\ndef test_it(amp, broken):\n    pass\n"
    )
    result = project.here(*ON_CPU)
    result.assert_outcomes(xfailed=1)
    assert (result.ret, red(result)) == (1, ["project on cpu-bf16: 1 selected, not one executed: xfail: known (1)"])


def test_lenient_xfail_that_passes_is_an_executed_check(project: Project) -> None:
    project.write(test_it="import pytest\n\n\n@pytest.mark.xfail\ndef test_it(amp):\n    pass\n")
    result = project.here(*ON_CPU)
    result.assert_outcomes(xpassed=1)
    assert (result.ret, "ran       cpu-bf16  project 1" in summary(result)) == (0, True)


@pytest.mark.parametrize("workers", ["0", "1"])
def test_run_without_selected_tests_ends_with_5(project: Project, workers: str) -> None:
    project.write(test_it=PASSING)
    result = project.run(*ON_CPU, "-k", "nothing", "-n", workers)
    assert (result.ret, red(result)) == (5, [])


def test_deselected_family_is_not_missed(project: Project) -> None:
    family(project, "rules", test_rules=PASSING)
    family(project, "gradients", test_gradients=SKIPPING.format(reason="no model"))
    result = project.here(*ON_CPU, "-k", "test_rules")
    assert (result.ret, red(result)) == (0, [])


def test_run_that_stops_early_is_red_for_each_family(project: Project) -> None:
    family(project, "a", test_a="import pytest\n\n\ndef test_it(amp):\n    pytest.exit('done', returncode=0)\n")
    family(project, "b", test_b=PASSING)
    result = project.apart(*ON_CPU)
    assert result.ret == 1
    assert red(result) == [
        "a on cpu-bf16: 1 selected, not one executed: the run stopped before",
        "b on cpu-bf16: 1 selected, not one executed: the run stopped before",
    ]


_STOPPED = (
    "pytest_runtest_teardown(item):\n    if item.name.endswith('-1]'):\n        pytest.exit('done', returncode=0)"
)
_SWALLOWED = "pytest_runtest_protocol(item):\n    return item.name.endswith('-1]') or None"


@pytest.mark.parametrize(
    ("hook", "workers"),
    [(_STOPPED, "0"), (_SWALLOWED, "0"), (_SWALLOWED, "2")],  # pytest-xdist itself fails for such a worker
    ids=["stopped", "swallowed", "swallowed by workers"],
)
def test_family_that_ran_in_part_is_red(project: Project, hook: str, workers: str) -> None:
    """Use hooks that end the run as green, or keep tests from running without a report."""
    project.write(
        conftest=f"import pytest\n\n\ndef {hook}\n",
        test_it="import pytest\n\n\n@pytest.mark.parametrize('n', range(3))\ndef test_it(amp, n):\n    pass\n",
    )
    result = project.apart(*ON_CPU, "-n", workers)
    assert result.ret == 1
    (line,) = red(result)
    assert line.startswith("project on cpu-bf16: 3 selected, 2 came to an end: the run stopped before, or another")


_UNCALLED = {
    "a hook answers": "def pytest_pyfunc_call(pyfuncitem):\n    return True\n",
    "a test is emptied": "def pytest_collection_modifyitems(items):\n"
    "    for item in items:\n        item.runtest = lambda: None\n",
}


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize("how", _UNCALLED)
def test_test_whose_function_is_never_called_is_red(project: Project, how: str, workers: str) -> None:
    """Include expected failures, strict or not; tests without this plugin's fixtures are not judged."""
    project.write(
        conftest=_UNCALLED[how],
        test_it="import pytest\n\n\ndef test_it(amp):\n    assert False\n\n\n"
        "@pytest.mark.xfail(strict=True)\ndef test_strict(amp):\n    assert False\n\n\n"
        "@pytest.mark.xfail\ndef test_lenient(amp):\n    assert False\n\n\ndef test_own():\n    assert False\n",
    )
    result = project.run(*ON_CPU, "-n", workers)
    result.assert_outcomes(failed=3, passed=1)
    assert result.ret == 1
    lines = {line for line in result.outlines if line.startswith("AmpFailure: ")}
    assert lines == {
        f"AmpFailure: {name}[cpu-bf16] passed, but its function was never called: "
        "a conftest or a plugin runs it in pytest's place (pytest_pyfunc_call, say)"
        for name in ("test_it", "test_strict", "test_lenient")
    }


def test_tests_that_other_plugins_call_pass(project: Project) -> None:
    """Accept plugins for coroutines and repetitions, and decorators that preserve the name."""
    project.write(
        conftest="import asyncio\nimport inspect\n\n\ndef pytest_pyfunc_call(pyfuncitem):\n"
        "    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem.fixturenames if name == 'amp'}\n"
        "    if inspect.iscoroutinefunction(pyfuncitem.obj):\n"
        "        asyncio.run(pyfuncitem.obj(**given))\n        return True\n"
        "    if 'repeated' in pyfuncitem.name:\n"
        "        for _ in range(2):\n            pyfuncitem.obj(**given)\n        return True\n",
        test_it="from hypothesis import given, settings, strategies\n\nseen = []\n\n\n"
        "async def test_awaited(amp):\n    seen.append(1)\n\n\n"
        "def test_repeated(amp):\n    seen.append(1)\n\n\n"
        "class TestMethods:\n    def test_method(self, amp):\n        seen.append(self)\n\n\n"
        "@settings(max_examples=3, database=None)\n@given(n=strategies.integers())\n"
        "def test_drawn(amp, n):\n    seen.append(n)\n\n\n"
        "def test_all_of_them(amp):\n    assert len(seen) >= 5\n",
    )
    result = project.here(*ON_CPU, "-p", "no:anyio", "-p", "no:asyncio")
    result.assert_outcomes(passed=5)
    assert (result.ret, red(result)) == (0, [])


def test_family_that_exitfirst_did_not_reach_is_reported(project: Project) -> None:
    family(project, "a", test_a="def test_it(amp):\n    assert False\n")
    family(project, "b", test_b=PASSING)
    result = project.here(*ON_CPU, "-x")
    assert (result.ret, red(result)) == (1, ["b on cpu-bf16: 1 selected, not one executed: the run stopped before"])


THREADED = """
import threading

import torch


def test_it(amp):
    thread = threading.Thread(target=lambda: amp.check_fp32(torch.arange(100.0).bfloat16()))
    thread.start()
    thread.join()


def test_other(amp):
    pass
"""


def test_check_that_fails_in_a_thread_is_red(project: Project) -> None:
    """Fail the test, for which pytest itself prints a warning alone."""
    project.write(test_it=THREADED)
    result = project.here("--amp-device=cpu", "--amp-dtype=bf16", "-Wignore")
    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["AmpFailure: the tensor is bfloat16, it should be float32", "  lost in   the thread *"]
    )


def test_error_in_a_fixture_is_reported_once(project: Project) -> None:
    project.write(
        test_it="import pytest\n\n\n@pytest.fixture\ndef broken():\n    1 / 0\n\n\ndef test_it(amp, broken):\n    pass"
    )
    result = project.here(*ON_CPU)
    assert (result.ret, red(result)) == (1, [])
    assert "ran       cpu-bf16  project 1 error" in summary(result)


@pytest.mark.parametrize("option", ["--collect-only", "--setup-plan", "--setup-only"])
def test_collect_only_and_setup_only_runs_are_green(project: Project, option: str) -> None:
    project.write(test_it=PASSING, test_skipping=SKIPPING.format(reason="x"))
    result = project.here(*ON_CPU, option)
    assert (result.ret, red(result)) == (0, [])


def test_skips_without_mixed_precision_are_green(project: Project) -> None:
    project.write(test_it="import pytest\n\n\ndef test_it():\n    pytest.skip('not today')\n")
    result = project.here()
    assert (result.ret, summary(result)) == (0, [])


IMPORTING = "import pytest\n\npytest.importorskip('no_such_package')\n\n\ndef test_it(amp):\n    pass\n"


@pytest.mark.parametrize("workers", ["0", "1"])
def test_family_whose_modules_skip_themselves_is_red(project: Project, workers: str) -> None:
    """Report the requested family although no test is left that could be counted as skipped."""
    family(project, "rules", test_rules=PASSING)
    family(project, "gradients", test_gradients=IMPORTING)
    result = project.run(*ON_CPU, "-n", workers)
    assert result.ret == 1
    (line,) = red(result)
    assert line.startswith(
        "gradients: no check was executed, gradients/test_gradients.py was skipped while it was collected: "
    )
    assert "no_such_package" in line
    # Alone it is red, too, instead of "no tests collected".
    assert project.run(*ON_CPU, "-n", workers, "gradients").ret == 1


def test_skipped_module_of_a_family_that_ran_is_listed(project: Project) -> None:
    family(project, "rules", test_rules=PASSING, test_more=IMPORTING)
    result = project.here(*ON_CPU)
    assert (result.ret, red(result)) == (0, [])
    assert any(line.startswith("skipped   all of rules/test_more.py (") for line in summary(result))


def test_skipped_module_is_not_missed_under_k(project: Project) -> None:
    family(project, "rules", test_rules=PASSING)
    family(project, "gradients", test_gradients=IMPORTING)
    assert project.here(*ON_CPU, "-k", "rules").ret == 0


def test_skipped_module_of_a_project_is_not_missed(project: Project) -> None:
    project.write(test_it=PASSING, test_skipping=IMPORTING)
    assert project.here(*ON_CPU).ret == 0


POISONED = (
    SIMULATED
    + """
    poisoned = False

    def synchronize(self):
        if Simulated.poisoned:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\\nsecond line")
"""
)
POISONING = """
import pytest
from conftest import Simulated


def test_a(amp):
    pass


@pytest.mark.amp(devices=["simulated"])
def test_b_poisons(amp):
    Simulated.poisoned = True


@pytest.mark.parametrize("n", [1, 2, 3])
def test_c(amp, n):
    pass


@pytest.mark.amp(devices=["simulated"])
def test_d(amp_device):
    pass


def test_plain():
    pass
"""


def test_poisoned_device_ends_its_tests_and_names_the_culprit(project: Project) -> None:
    """Name the culprit in one line, run no later test on that device, and run those elsewhere."""
    project.write(conftest=POISONED, test_it=POISONING)
    result = project.apart("--amp-device=simulated,cpu", "--amp-dtype=bf16", "-v", "-p", "no:randomly")
    text = result.stdout.str()
    culprit = "test_it.py::test_b_poisons[simulated-bf16]"
    assert f"{culprit} ERROR" in text
    message = "CUDA error: an illegal memory access was encountered"
    assert "second line" not in text
    assert f"simulated no longer answers after this test: {message}" in text
    assert red(result) == [f"simulated no longer answers after {culprit}: {message}; 4 tests not run"]
    for name in ("test_a[simulated-bf16]", "test_a[cpu-bf16]", "test_c[cpu-bf16-3]", "test_plain"):
        assert f"::{name} PASSED" in text
    for name in ("test_c[simulated-bf16-1]", "test_c[simulated-bf16-3]", "test_d[simulated-bf16]"):
        assert f"::{name} SKIPPED (not run: simulated " in text  # pytest shortens the reason to the terminal
    assert "skipped   4 (not run: simulated no longer answers)" in result.outlines
    result.assert_outcomes(passed=7, errors=1, skipped=4, deselected=2)
    assert result.ret == 1


def test_state_of_torch_is_restored_after_a_poisoned_device(project: Project) -> None:
    project.write(
        conftest=POISONED,
        test_it="import torch\nfrom conftest import Simulated\n\n\ndef test_a(amp):\n    Simulated.poisoned = True\n"
        "    torch.set_default_dtype(torch.float64)\n    torch.set_num_threads(3)\n\n\n"
        "def test_z():\n    assert torch.get_default_dtype() == torch.float32\n",
    )
    result = project.here("--amp-device=simulated", "--amp-dtype=bf16")
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["simulated no longer answers after this test: *", "AmpFailure: *default dtype: *"])


def test_worker_with_a_poisoned_device_is_replaced(project: Project) -> None:
    project.write(conftest=POISONED, test_it=POISONING)
    result = project.apart("--amp-device=simulated", "--amp-dtype=bf16", "-n", "1", "-v", "--amp-record=new.json")
    text = result.stdout.str()
    assert "test_b_poisons[simulated-bf16]" in text
    assert "no longer answers after this test" in text
    # The remaining tests ran in a new process, with a device that answers.
    for name in ("test_c[simulated-bf16-1]", "test_c[simulated-bf16-3]", "test_d[simulated-bf16]", "test_plain"):
        assert f"PASSED test_it.py::{name}" in text
    assert result.ret == 1
    assert project.record("new.json")["complete"] is False
    culprit, message = (
        "test_it.py::test_b_poisons[simulated-bf16]",
        "CUDA error: an illegal memory access was encountered",
    )
    assert red(result) == [f"simulated no longer answers after {culprit}: {message}"]
