"""Sweeps lose one operator if a child process dies, report it, and continue."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pytest_amp.devices import find_device
from pytest_amp.devices.accelerator import AcceleratorDevice
from pytest_amp.rules.sweep import ChildSweep, ExaminationFailed, InProcessSweep, open_sweep
from tests.project import Project

EXAMINER = "tests.rules.planted_examiners:examine"


@pytest.fixture(scope="module")
def sweep() -> Iterator[ChildSweep]:
    result = ChildSweep("cpu", path=sys.path, examiner=EXAMINER, timeout=120)
    yield result
    result.close()


def test_child_answers_several_requests(sweep: ChildSweep) -> None:
    first = sweep.examine("rule", "aten::mm", torch.bfloat16)
    second = sweep.examine("hand_cast", "prints", torch.float16)
    assert first == {**first, "check": "rule", "overload": "aten::mm", "device": "cpu", "dtype": "bfloat16"}
    assert (second["check"], second["dtype"]) == ("hand_cast", "float16")
    assert first["pid"] == second["pid"]


@pytest.mark.parametrize(
    ("overload", "message"),
    [
        ("exits", "the process that examined exits ended with status 3"),
        ("is killed", "the process that examined is killed died of SIGSEGV"),
        ("poisons", "the device no longer answered after poisons: RuntimeError: CUDA error: an illegal memory access"),
    ],
)
def test_child_that_dies_loses_one_operator(sweep: ChildSweep, overload: str, message: str) -> None:
    before = sweep.examine("rule", "aten::mm", torch.bfloat16)
    with pytest.raises(ExaminationFailed, match=message):
        sweep.examine("rule", overload, torch.bfloat16)
    after = sweep.examine("rule", "aten::add", torch.bfloat16)
    assert after["overload"] == "aten::add"
    assert after["pid"] != before["pid"]


def test_operator_that_raises_does_not_end_the_child(sweep: ChildSweep) -> None:
    before = sweep.examine("rule", "aten::mm", torch.bfloat16)
    with pytest.raises(ExaminationFailed, match=r"^raises: ValueError: no such thing$"):
        sweep.examine("rule", "raises", torch.bfloat16)
    assert sweep.examine("rule", "aten::mm", torch.bfloat16) == before


def test_child_that_hangs_is_killed() -> None:
    sweep = ChildSweep("cpu", path=sys.path, examiner=EXAMINER, timeout=120)
    sweep.examine("rule", "aten::mm", torch.bfloat16)
    sweep.process.timeout = 0.5
    with pytest.raises(ExaminationFailed, match=r"examined hangs did not answer within 0.5 s"):
        sweep.examine("rule", "hangs", torch.bfloat16)
    sweep.process.timeout = 120
    assert sweep.examine("rule", "aten::mm", torch.bfloat16)["overload"] == "aten::mm"
    sweep.close()


def test_child_that_fails_at_exit_is_reported() -> None:
    sweep = ChildSweep("cpu", path=sys.path, examiner=EXAMINER, timeout=120)
    sweep.examine("rule", "spoils the exit", torch.bfloat16)
    with pytest.raises(ExaminationFailed, match=r"after all its work .* ended with status 9"):
        sweep.close()


def test_child_that_cannot_start_is_not_restarted() -> None:
    sweep = ChildSweep("cpu", path=sys.path, modules=["no_such_module"], timeout=120)
    for _ in range(2):
        with pytest.raises(ExaminationFailed, match=r"before it was ready|No module named 'no_such_module'"):
            sweep.examine("rule", "aten::mm", torch.bfloat16)
    assert sweep.process.starts == 1


def test_child_imports_the_requested_modules(tmp_path: Path) -> None:
    (tmp_path / "breaks_mm.py").write_text(
        "import torch\n"
        "library = torch.library.Library('aten', 'IMPL')\n"
        "library.impl('mm', lambda a, b: torch.zeros(3, 5), 'AutocastCPU')\n"
    )
    sweep = ChildSweep("cpu", path=[str(tmp_path), *sys.path], modules=["breaks_mm"], timeout=60)
    assert sweep.examine("rule", "aten::mm", torch.bfloat16)["rule"] == "unrecognised"
    assert sweep.examine("rule", "aten::bmm", torch.bfloat16)["rule"] == "lower_precision_fp"
    sweep.close()


def test_cpu_and_fake_devices_are_swept_in_this_process() -> None:
    for name in ("cpu", "fake:cuda"):
        sweep = open_sweep(find_device(name))
        assert isinstance(sweep, InProcessSweep)
        assert sweep.examine("rule", "aten::mm", torch.float16)["rule"] == "lower_precision_fp"
        with pytest.raises(ExaminationFailed, match="no operator aten::no_such_thing"):
            sweep.examine("rule", "aten::no_such_thing", torch.float16)
        sweep.close()


def test_accelerator_is_swept_in_a_child() -> None:
    assert isinstance(open_sweep(find_device("xpu")), ChildSweep)


def test_device_of_a_hook_is_swept_in_this_process() -> None:
    class Made(AcceleratorDevice):
        """Device as a back end may define one."""

    assert isinstance(open_sweep(Made("xpu")), InProcessSweep)


def test_plugin_modules_lists_plugins_of_the_command_line(project: Project) -> None:
    project.write(
        breaks_nothing="",
        also_named="",
        test_it="""
        from pytest_amp.child_process import plugin_modules

        def test_it(request):
            assert plugin_modules(request.config) == ["breaks_nothing", "also_named"]
        """,
    )
    project.pytester.syspathinsert()
    result = project.apart("-p", "breaks_nothing", "-p", "xdist", "-p", "also_named", "-p", "no:legacypath")
    result.assert_outcomes(passed=1)
