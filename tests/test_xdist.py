"""pytest-xdist: the same facts and the same exit status; GPUs of workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_amp.record import read_record
from pytest_amp.run import workers
from tests.project import Project, red, summary

MIXED = """
import pytest


@pytest.mark.parametrize("n", range(4))
def test_observing(amp, n):
    amp.observe(f"x/{n}", [n, None, True, 1.5, float("inf")], kind="state")
    amp.observe(f"e/{n}", 1e-3 * n, kind="error", allowed=0.01, unit="relative")


def test_failing(amp):
    assert amp.precision.name == "bf16"


def test_skipping(amp):
    pytest.skip("not here")


def test_undecided(amp):
    pytest.skip("inconclusive: too noisy")


@pytest.mark.amp(xfail={"cpu-fp16": "a/b#1"})
def test_expected(amp):
    assert amp.precision.name == "bf16"


def test_leaking(amp):
    import torch

    torch.set_grad_enabled(False)


@pytest.mark.amp_long
def test_long(amp):
    pass


@pytest.mark.amp(devices=["cuda"])
def test_elsewhere(amp):
    pass


def test_plain():
    pass
"""


def test_workers_report_the_same_as_one_process(project: Project) -> None:
    project.write(test_it=MIXED)
    alone = project.here("--amp-device=cpu", "--amp-record=alone.json")
    together = project.apart("--amp-device=cpu", "--amp-record=together.json", "-n", "2", "-p", "no:randomly")
    assert alone.ret == together.ret == 1
    assert alone.parseoutcomes() == {**together.parseoutcomes(), "deselected": 4}

    def block(result: pytest.RunResult) -> list[str]:
        return [line for line in summary(result) if not line.startswith(("wrote", "note"))]

    assert block(alone) == block(together)
    assert "ran       cpu-bf16  project 7 + 1 error + 1 inconclusive + 1 skipped" in block(alone)
    one, two = (read_record(project.path / name) for name in ("alone.json", "together.json"))
    assert (one.observations, one.summary) == (two.observations, two.summary)
    assert len(one.observations) == 16


@pytest.mark.parametrize(
    ("end", "status", "message"),
    [
        ("os._exit(7)", 1, "RED       gw0 died at exit, after its tests: exit status 7"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 1, "RED       gw0 died at exit, after its tests: exit status -11"),
        # pytest-xdist kills a worker that takes long to end.
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            0,
            "note      gw0 was slow to end after its tests; none is missing",
        ),
    ],
)
def test_worker_that_dies_at_exit_is_reported(project: Project, end: str, status: int, message: str) -> None:
    """Report the worker, since nothing else would after green tests."""
    project.write(
        conftest="import atexit\nimport os\nimport signal\n\n\ndef pytest_configure(config):\n"
        f"    if hasattr(config, 'workerinput'):\n        atexit.register(lambda: {end})\n",
        test_it="import pytest\n\n\n@pytest.mark.amp_long\ndef test_it():\n    pass\n",
    )
    result = project.apart("--amp-tier=all", "-n", "1")
    result.assert_outcomes(passed=1)
    assert (result.ret, message in summary(result)) == (status, True)


def test_worker_that_crashes_is_red_and_other_tests_run(project: Project) -> None:
    project.write(
        test_it="import os\n\nimport pytest\n\n\n@pytest.mark.parametrize('n', range(4))\n"
        "def test_it(amp, n):\n    amp.observe(f'{n}', n, kind='count')\n    if n == 1:\n        os._exit(3)\n"
    )
    result = project.apart("--amp-device=cpu", "--amp-dtype=bf16", "-n", "1", "--amp-record=new.json")
    assert result.ret == 1
    (line,) = red(result)
    assert line.startswith("gw0 ended early: ")
    assert set(project.observed("new.json").values()) == {0, 2, 3}
    record = project.record("new.json")
    assert record["complete"] is False
    assert record["summary"] == {"cpu-bf16 project": {"error": 1, "passed": 3}}
    (failure,) = record["failures"]
    assert failure["key"] == "project/cpu/bf16/test_it::test_it[1]"
    assert failure["why"].startswith("worker 'gw0' crashed while running ")


PINNED = """
import os

import pytest


@pytest.mark.parametrize("n", range(8))
@pytest.mark.amp(fake=True)
def test_it(amp, n, record_property, worker_id):
    amp.observe(f"{worker_id}/{n}", os.environ.get("CUDA_VISIBLE_DEVICES"), kind="state")
    amp.observe(f"gpus/{worker_id}/{n}", GPUS.get("amp_gpus"), kind="count")


GPUS = {}


@pytest.fixture(autouse=True)
def gpus(request):
    GPUS.update(request.config.workerinput)
"""
WHEN_IMPORTED = """
import os
import sys

assert "torch" not in sys.modules
AT_START = os.environ.get("CUDA_VISIBLE_DEVICES")


def pytest_runtest_setup():
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == AT_START
"""


def pinned(project: Project, *arguments: str, count: int = 2) -> dict[str, set[object]]:
    """Return the GPUs that each worker sees."""
    project.write(test_it=PINNED, conftest=WHEN_IMPORTED)
    result = project.apart(*arguments, "--amp-dtype=bf16", "-n", str(count), "--dist=each", "--amp-record=new.json")
    assert "passed" in result.parseoutcomes(), result.outlines
    observed: dict[str, set[object]] = {}
    for key, value in project.observed("new.json").items():
        name = key.split("/", 3)[3]
        if name.startswith("gw"):
            observed.setdefault(name.split("/")[0], set()).add(value)
    return observed


def test_workers_get_different_entries_of_visible_devices(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5f")
    arguments = ("--amp-device=fake:cuda,cuda", "--amp-allow-missing=device")
    assert pinned(project, *arguments) == {"gw0": {"2"}, "gw1": {"GPU-5f"}}
    assert {v for k, v in project.observed("new.json").items() if "/gpus/" in k} == {2}


def test_workers_are_pinned_only_if_cuda_is_requested(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert pinned(project, "--amp-device=fake:cuda", count=1) == {"gw0": {"2,3"}}


def test_hidden_gpu_stays_hidden(project: Project) -> None:
    arguments = ("--amp-device=fake:cuda,cuda", "--amp-allow-missing=device")
    assert pinned(project, *arguments, count=1) == {"gw0": {""}}


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("2,3", ("2", "3")),
        (" 2 , 3 ", ("2", "3")),
        ("GPU-1,MIG-2", ("GPU-1", "MIG-2")),
        ("0,-1,1", ("0",)),
        ("-1", ()),
        ("", ()),
        ("0,,1", ("0",)),
    ],
)
def test_visible_devices_are_parsed_as_by_cuda(tmp_path: Path, listed: str, names: tuple[str, ...]) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    assert workers.visible_gpus({"CUDA_VISIBLE_DEVICES": listed}, tmp_path) == names


def test_gpus_are_listed_by_the_nvidia_driver(tmp_path: Path) -> None:
    assert workers.visible_gpus({}, tmp_path) == ()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        path = tmp_path / "dev" / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert workers.visible_gpus({}, tmp_path) == ("0", "1")
    # The driver's own list is more accurate than device files, which a container may lack.
    for name in ("0000:01:00.0", "0000:02:00.0", "0000:03:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / name).mkdir(parents=True)
    assert workers.visible_gpus({}, tmp_path) == ("0", "1", "2")


def test_gpus_are_listed_by_the_amd_driver(tmp_path: Path) -> None:
    for number, gpu_id in enumerate(["0", "4023", "", "511"]):
        path = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{number}/gpu_id"
        path.parent.mkdir(parents=True)
        path.write_text(f"{gpu_id}\n", encoding="ascii")
    (tmp_path / "sys/class/kfd/kfd/topology/nodes/4/gpu_id").mkdir(parents=True)  # unreadable
    assert workers.visible_gpus({}, tmp_path) == ("0", "1")


def test_more_workers_than_gpus_share_them() -> None:
    visible = ("2", "5", "7")
    assert [workers.gpu_of_worker(n, visible) for n in range(5)] == ["2", "5", "7", "2", "5"]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [(("cuda",), True), (("cpu", "cuda:1"), True), (("auto",), False), (("all",), False), (("fake:cuda",), False)],
)
def test_cuda_is_requested_by_name_only(devices: tuple[str, ...], expected: bool) -> None:  # noqa: FBT001  # a parameter of a test
    assert workers.asks_for_cuda(devices) is expected


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (("-n", "3"), 3),
        (("-n", "0"), 1),
        (("--dist=load", "--tx", "3*popen"), 3),
        (("--dist=load", "--tx", "popen", "--tx", "2*popen//python=x"), 3),
        ((), 1),
        (("-p", "no:xdist"), 1),
    ],
)
def test_worker_count_follows_the_options_of_xdist(project: Project, arguments: tuple[str, ...], count: int) -> None:
    project.write(
        conftest="import pytest\n\nfrom pytest_amp.run import workers\n\n\n@pytest.hookimpl(trylast=True)\n"
        "def pytest_configure(config):\n    raise pytest.UsageError(f'{workers.worker_count(config)} workers')\n"
    )
    result = project.here(*arguments)
    assert f"ERROR: {count} workers" in result.errlines
