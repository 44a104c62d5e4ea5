"""Projects with a layout, names, configuration or plugins unlike this one's."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

import pytest

from tests.project import INSTALLED, ON_CPU, ROOT, Project, ids, red, summary

LOADED = () if INSTALLED else ("-p", "pytest_amp.plugin")
OBSERVING = """
import pytest
import torch


@pytest.mark.parametrize("size", [2, 3])
def test_it(amp, size):
    amp.observe(f"size {size}", torch.zeros(size).numel(), kind="count")


def test_device(amp_device, amp_dtype, tmp_path):
    assert amp_dtype is torch.bfloat16


def test_plain():
    assert True
"""


@pytest.mark.parametrize(
    "switches",
    [
        ("-p", "no:terminal"),
        ("-p", "no:junitxml", "-p", "no:logging", "-p", "no:warnings"),
        ("-p", "no:benchmark", "-p", "no:xdist", "-p", "no:cacheprovider"),
        ("--import-mode=importlib",),
        ("-W", "error"),
        ("--strict-markers", "--strict-config", "--assert=plain", "-s"),
    ],
    ids=" ".join,
)
def test_plugin_passes_under_switches_of_pytest(project: Project, switches: tuple[str, ...]) -> None:
    project.write(test_it=OBSERVING)
    result = project.apart(*ON_CPU, "-p", "no:asyncio", "--amp-record=new.json", *switches)  # it warns of its defaults
    assert result.ret == 0, result.stdout.str() + result.stderr.str()
    assert project.observed("new.json") == {f"project/cpu/bf16/size {size}": size for size in (2, 3)}


@pytest.mark.parametrize("switches", [("-W", "error"), ("--import-mode=importlib",)], ids=" ".join)
def test_suite_passes_under_switches_of_pytest(project: Project, switches: tuple[str, ...]) -> None:
    result = project.apart(
        *ON_CPU,
        "-p",
        "no:asyncio",
        *switches,
        "-x",
        str(ROOT / "suites" / "scaler" / "test_scale.py"),
        f"--rootdir={ROOT}",
    )
    assert (result.ret, red(result)) == (0, []), result.stdout.str()[-2000:]


@pytest.mark.parametrize("name", ["mit Leerzeichen", "Größe-模型-🔥 a'b\"c per%cent"])
def test_unusual_paths_are_accepted(project: Project, name: str) -> None:
    project.file(f"{name}/test_it.py", OBSERVING)
    result = project.apart(*ON_CPU, f"--amp-record={name}.json", f"--amp-report=md:{name}.md", f"./{name}")
    assert (result.ret, red(result)) == (0, []), result.stdout.str()
    assert len(project.observed(f"{name}.json")) == 2
    again = project.apart(*ON_CPU, f"--amp-baseline={name}.json", f"./{name}")
    assert (again.ret, red(again)) == (0, [])


def test_output_in_ascii_does_not_crash(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    monkeypatch.setenv("LC_ALL", "C")
    project.write(test_it="def test_it(amp):\n    amp.observe('größe', 1, kind='count')\n    assert 'ü' == 'u', '模'\n")
    result = project.apart(*ON_CPU, "--amp-record=new.json")
    assert result.ret == 1
    assert "INTERNALERROR" not in result.stdout.str()
    assert [item["key"] for item in project.observations("new.json")] == ["project/cpu/bf16/größe"]


OWN_FIXTURE = """
import pytest


@pytest.fixture
def amp():
    return "an amplifier"


def test_loudness(amp):
    assert amp == "an amplifier"
"""


def test_fixture_amp_of_a_project_replaces_the_plugins(project: Project) -> None:
    """Check that its tests keep their ids, that torch is not imported, and that nothing is counted."""
    project.write(
        test_own=OWN_FIXTURE, test_torch="import sys\n\n\ndef test_it():\n    assert 'torch' not in sys.modules"
    )
    result = project.fresh("-v")
    result.assert_outcomes(passed=2)
    assert "test_own.py::test_loudness PASSED" in result.stdout.str()
    assert summary(result) == []


def test_both_fixtures_amp_work_in_one_project(project: Project) -> None:
    project.write(test_own=OWN_FIXTURE, test_it=OBSERVING)
    result = project.here(*ON_CPU, "--collect-only", "-q")
    assert sorted(ids(result)) == ["cpu-bf16", "cpu-bf16-2", "cpu-bf16-3", "test_loudness", "test_plain"]


def test_fixture_that_wraps_amp_can_observe(project: Project) -> None:
    project.write(
        conftest="import pytest\n\n\n@pytest.fixture\ndef amp(amp):\n    amp.observe('seen', 1, kind='count')\n"
        "    return amp\n",
        test_it="def test_it(amp):\n    amp.observe('x', 1, kind='count')\n",
    )
    result = project.here(*ON_CPU, "--amp-record=new.json")
    result.assert_outcomes(passed=1)
    assert set(project.observed("new.json")) == {"project/cpu/bf16/seen", "project/cpu/bf16/x"}


def test_option_amp_of_a_project_is_not_an_abbreviation(project: Project) -> None:
    """Accept ``--amp`` of another tool as its own option, and refuse its marker amp, which clashes."""
    project.write(
        conftest="def pytest_addoption(parser):\n    parser.addoption('--amp', action='store_true')\n",
        test_it="def test_it(request):\n    assert request.config.getoption('--amp')\n",
    )
    project.here("--amp").assert_outcomes(passed=1)
    project.write(test_it="import pytest\n\n\n@pytest.mark.amp(level='O1')\ndef test_it():\n    pass\n")
    result = project.here()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "level" in result.stderr.str()


NEIGHBOURS = {
    "pytest_randomly": ("--randomly-seed=3",),
    "pytest_rerunfailures": ("--reruns=2",),
    "pytest_timeout": ("--timeout=60",),
    "pytest_cov": ("--cov=.", "--cov-report="),
    "pytest_asyncio": ("-o", "asyncio_mode=auto"),
    "pytest_codspeed": (),  # its own switch deselects everything except benchmarks
    "pytest_repeat": ("--count=2",),
}


def _needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: it is in the dependency group neighbours")


@pytest.mark.parametrize("module", NEIGHBOURS)
def test_plugin_passes_with_other_plugins(project: Project, module: str) -> None:
    _needs(module)
    project.write(test_it=OBSERVING)
    switches = (*NEIGHBOURS[module], "-n", "1", "--amp-record=new.json")
    result = project.pytester.runpytest_subprocess(*LOADED, *ON_CPU, *switches, timeout=120)
    assert result.ret == 0, result.stdout.str() + result.stderr.str()
    assert project.observed("new.json") == {f"project/cpu/bf16/size {size}": size for size in (2, 3)}


def test_seed_of_the_plugin_overrides_that_of_randomly(project: Project) -> None:
    """pytest-randomly reseeds torch before each test; the guard seeds after it, so that inputs stay the same."""
    _needs("pytest_randomly")
    project.write(
        test_it="import torch\n\n\ndef test_it(amp):\n    amp.observe('x', torch.rand(()).item(), kind='measure')\n"
    )
    values = set()
    for seed in ("1", "2"):
        switches = (f"--amp-record={seed}.json", f"--randomly-seed={seed}")
        result = project.pytester.runpytest_subprocess(*LOADED, *ON_CPU, *switches, timeout=120)
        assert result.ret == 0, result.stdout.str() + result.stderr.str()
        values |= set(project.observed(f"{seed}.json").values())
    assert len(values) == 1


FLAKY = """
from pathlib import Path


def test_flaky(amp):
    amp.observe("x", 1, kind="count")
    seen = Path("seen")
    if not seen.exists():
        seen.touch()
        assert False


def test_red(amp):
    assert False
"""


def test_rerun_test_is_counted_once(project: Project) -> None:
    _needs("pytest_rerunfailures")
    project.write(test_it=FLAKY)
    result = project.pytester.runpytest_subprocess(*LOADED, *ON_CPU, "--reruns=1", "--amp-record=new.json", timeout=120)
    assert result.ret == 1
    assert "ran       cpu-bf16  project 1 + 1 failed" in summary(result)
    assert project.observed("new.json") == {"project/cpu/bf16/x": 1}


#: Effect of pytest-repeat with ``--count=2``.
REPEATED = """
import pytest


def pytest_addoption(parser):
    parser.addoption("--count", type=int, default=2)


@pytest.fixture
def __pytest_repeat_step_number(request):
    return request.param


def pytest_generate_tests(metafunc):
    name = "__pytest_repeat_step_number"
    metafunc.fixturenames.append(name)
    metafunc.parametrize(name, range(2), indirect=True, ids=["1-2", "2-2"])
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_repetitions_are_recorded_as_one_test(project: Project, workers: str) -> None:
    """Record one key and one value for all repetitions; a value that varies between them is red."""
    project.write(conftest=REPEATED, test_it=OBSERVING)
    result = project.run(*ON_CPU, "-p", "no:repeat", "--amp-record=new.json", "-n", workers)
    assert (result.ret, red(result)) == (0, [])
    result.assert_outcomes(passed=8)
    assert project.observed("new.json") == {f"project/cpu/bf16/size {size}": size for size in (2, 3)}
    project.write(
        test_it="def test_it(amp, request):\n    amp.observe('x', request.node.name, kind='state')\n"
        "    amp.observe('seconds', len(request.node.name) + id(amp), kind='seconds')\n"
    )
    result = project.run(*ON_CPU, "-p", "no:repeat", "-n", workers)
    assert result.ret == 1
    (line,) = red(result)
    assert line.startswith("project/cpu/bf16/x: observed by test_it.py::test_it[")


def test_timeout_of_another_plugin_is_counted_as_a_failure(project: Project) -> None:
    _needs("pytest_timeout")
    project.write(
        test_it="import time\n\n\ndef test_it(amp):\n    time.sleep(60)\n\n\ndef test_other(amp):\n    pass\n"
    )
    result = project.pytester.runpytest_subprocess(*LOADED, *ON_CPU, "--timeout=2", timeout=120)
    assert result.ret == 1
    assert "ran       cpu-bf16  project 1 + 1 failed" in summary(result)


def test_coroutine_tests_pass(project: Project) -> None:
    _needs("pytest_asyncio")
    project.write(
        test_it="import torch\n\n\nasync def test_it(amp):\n    with amp.autocast():\n"
        "        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is amp.dtype\n"
    )
    result = project.pytester.runpytest_subprocess(*LOADED, *ON_CPU, "-o", "asyncio_mode=auto", timeout=120)
    result.assert_outcomes(passed=1)


def test_read_only_folder_passes_without_a_record(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    project.write(test_it=OBSERVING)
    scratch = tmp_path_factory.mktemp("scratch")
    command = [sys.executable, "-m", "pytest", *LOADED, *ON_CPU, f"--basetemp={scratch / 'base'}"]
    if os.geteuid() != 0:
        project.path.chmod(0o555)
    elif shutil.which("unshare"):  # only a mount, in a namespace of its own, is read-only to root
        mount = f"mount --bind {project.path} {project.path} && mount -o remount,ro,bind {project.path}"
        command = ["unshare", "--mount", "sh", "-c", f'{mount} && cd {project.path} && exec "$@"', "sh", *command]
    else:
        pytest.skip("nothing is read-only to root here")
    try:
        result = project.pytester.run(*command, timeout=120)
        assert result.ret == 0, result.stdout.str() + result.stderr.str()
        refused = project.pytester.run(*command, "--amp-record=new.json", timeout=120)
    finally:
        project.path.chmod(0o755)
    text = refused.stdout.str() + refused.stderr.str()
    assert refused.ret != 0, text
    assert "new.json" in text
    assert "Traceback" not in text
    assert not (project.path / "new.json").exists()
