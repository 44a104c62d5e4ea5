"""Imports: few modules in projects without mixed precision, and no torch in the controller."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

from tests.project import Project

#: Imported by every Python process of the run: at exit it writes its imports and the processes that it started.
SITECUSTOMIZE = """
import atexit
import json
import os
import sys

STARTED = []


def listen(event, arguments):
    if event in ("subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"):
        STARTED.append([event, str(arguments[0]) if arguments else ""])


def tell():
    with open(os.environ["TOLD"], "a") as file:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")
        told = {"worker": worker, "modules": sorted(sys.modules), "started": STARTED, "arguments": sys.argv}
        file.write(json.dumps(told) + chr(10))


if os.environ.get("TOLD"):
    sys.addaudithook(listen)
    atexit.register(tell)
"""
HEAVY = {"torch", "numpy", "xdist.workermanage", "jinja2", "hypothesis"}
#: Without the plugins that start processes or import much themselves.
QUIET = ("-p", "no:pytest_cov", "-p", "no:hypothesispytest", "-p", "no:benchmark")
BARE = ("-p", "no:xdist", *QUIET)


@pytest.fixture
def told(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Return a project whose processes write their imports."""
    import os

    site = project.path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
    monkeypatch.setenv("TOLD", str(project.path / "told.jsonl"))
    return project


def processes(project: Project) -> list[dict[str, Any]]:
    """Return the report of each process, and reset it."""
    path = project.path / "told.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.unlink()
    return [json.loads(line) for line in lines]


def modules(project: Project, *arguments: str, plugin: bool) -> set[str]:
    """Return the imports of the only process of a run; assert that it started no other."""
    if plugin:
        result = project.fresh(*BARE, *arguments)
    else:
        result = project.pytester.runpytest_subprocess("-p", "no:amp", *BARE, *arguments)
    assert result.ret in (0, 5), result.outlines
    (process,) = processes(project)
    assert process["started"] == []
    return set(process["modules"])


@pytest.mark.parametrize("arguments", [("--collect-only",), ("-v",)])
@pytest.mark.parametrize("plain", [False, True])
def test_project_without_mixed_precision_imports_few_modules(
    told: Project,
    arguments: tuple[str, ...],
    plain: bool,  # noqa: FBT001
) -> None:
    if plain:
        told.write(
            test_it="import pytest\n\n\n@pytest.mark.parametrize('n', [1, 2])\ndef test_it(n, tmp_path):\n    pass"
        )
    without, with_plugin = (modules(told, *arguments, plugin=plugin) for plugin in (False, True))
    assert not HEAVY & with_plugin
    added = with_plugin - without
    assert any(name.startswith("pytest_amp") for name in added)
    # Packages are left out: their __init__ has at most imports, and the modules that these load are counted.
    counted = {name for name in added if not hasattr(importlib.import_module(name), "__path__")}
    assert len(counted) <= 9, sorted(counted)


def test_options_alone_import_no_torch(told: Project) -> None:
    told.write(test_it="def test_it():\n    pass")
    assert not HEAVY & modules(told, "--amp-device=cuda", "--amp-dtype=fp16", "--amp-record=new.json", plugin=True)


def test_help_and_version_and_errors_import_no_torch(told: Project) -> None:
    for arguments, status in ((("--help",), 0), (("--amp-device=nope",), 4), (("--amp-baseline=nope",), 4)):
        assert told.fresh(*BARE, *arguments).ret == status
        (process,) = processes(told)
        assert not HEAVY & set(process["modules"])
        assert process["started"] == []


AMP = "import pytest\n\n\n@pytest.mark.amp(fake=True)\ndef test_it(amp):\n    amp.observe('x', 1, kind='count')\n"


def test_controller_never_imports_torch(told: Project) -> None:
    told.write(test_it=AMP)
    told.fresh("--amp-device=cpu,fake:cuda", "--amp-dtype=bf16", "-n", "1", "--amp-record=old.json")
    assert told.record("old.json")["complete"] is True
    controller = next(process for process in processes(told) if not process["worker"])
    assert not {"torch", "numpy"} & set(controller["modules"])
    result = told.fresh(
        "--amp-device=fake:cuda", "--amp-dtype=bf16", "-n", "1", "--amp-baseline=old.json", "--amp-strict"
    )
    assert result.ret == 0
    actual = processes(told)
    (controller,) = [process for process in actual if not process["worker"]]
    (worker,) = [process for process in actual if process["worker"]]
    assert not {"torch", "numpy"} & set(controller["modules"])
    assert "torch" in worker["modules"]  # so that the test can distinguish them


def test_controller_probes_a_named_device_in_a_child(told: Project) -> None:
    told.write(test_it=AMP)
    assert told.fresh(*QUIET, "--amp-device=cuda", "-n", "2").ret == pytest.ExitCode.USAGE_ERROR
    controller = next(process for process in processes(told) if not process["arguments"][0].endswith("probe.py"))
    assert "torch" not in controller["modules"]
    started = [event for event, _ in controller["started"] if event == "subprocess.Popen"]
    assert len(started) == 1  # the probe, and no worker yet
