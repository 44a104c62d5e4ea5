"""Interrupted runs: complete results are written, a failed write is one line, and there is no traceback."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_amp.record import read_record
from tests.project import INSTALLED, ON_CPU, Project, red

SLOW = """
import pathlib
import time

import pytest


@pytest.mark.parametrize("n", range(40))
def test_it(amp, n):
    amp.observe(f"{n}", n, kind="count")
    if n == 3:
        pathlib.Path("reached").touch()
    if n > 3:
        time.sleep(0.5)
"""


def command(*arguments: str) -> list[str]:
    plugin = [] if INSTALLED else ["-p", "pytest_amp.plugin"]
    disabled = ("no:hypothesispytest", "no:cacheprovider")
    loaded = [*plugin, *(word for name in disabled for word in ("-p", name))]
    return [sys.executable, "-m", "pytest", *loaded, *ON_CPU, *arguments]


def _listen() -> None:
    """Restore the default handlers: a shell's background job ignores these signals, and so do its children."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def ended_by(project: Project, number: int, *arguments: str, group: bool = False) -> tuple[int, str]:
    """Return status and output of a run that is sent a signal in its middle, alone or with its process group."""
    project.write(test_it=SLOW)
    process = subprocess.Popen(
        command(*arguments),
        cwd=project.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=_listen,  # noqa: PLW1509  # no threads exist that it could affect
    )
    until = time.monotonic() + 60
    while not (project.path / "reached").exists() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.6)  # the report of that test is being sent
    if group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("workers", ["0", "1"])
def test_interrupted_run_writes_complete_results(project: Project, number: int, workers: str) -> None:
    if workers == "1" and number == signal.SIGHUP:
        pytest.skip("as SIGTERM")
    files = ("--amp-record=new.json", "--amp-report=md:page.md", "--amp-report=html:page.html")
    status, output = ended_by(project, number, *files, "-n", workers)
    assert status == pytest.ExitCode.INTERRUPTED, output
    record = read_record(project.path / "new.json")
    keys = {observation.name for observation in record.observations}
    assert {"0", "1", "2"} <= keys < {str(n) for n in range(40)}
    assert record.complete is False
    assert {"torch_build", "torch_git", "devices", "cpu_capability"} <= record.provenance.keys()
    assert "red on torch" in (project.path / "page.md").read_text(encoding="utf-8")
    assert (project.path / "page.html").read_text(encoding="utf-8").endswith("</html>\n")
    if number != signal.SIGINT:
        assert f"note      ended by {signal.Signals(number).name}: what was observed until then is written" in output
    assert "Traceback" not in output
    assert list(project.path.glob(".*.tmp")) == []


def test_workers_ended_by_the_same_signal_are_not_reported(project: Project) -> None:
    """Job schedulers and ``timeout`` send the signal to each process of a group."""
    status, output = ended_by(project, signal.SIGTERM, "--amp-record=new.json", "-n", "2", group=True)
    assert status == pytest.ExitCode.INTERRUPTED, output
    assert {"0", "1", "2"} <= {observation.name for observation in read_record(project.path / "new.json").observations}
    assert "died at exit" not in output
    assert "note      ended by SIGTERM" in output


@pytest.mark.parametrize("workers", ["0", "1"])
def test_signal_after_the_last_test_loses_nothing(project: Project, workers: str) -> None:
    """Send it while the record is assembled: the run takes a moment more, and all of it is written."""
    project.write(
        conftest="import os\nimport signal\n\n\ndef pytest_amp_provenance(provenance):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n",
        test_it="def test_it(amp):\n    amp.observe('x', 1, kind='count')\n",
    )
    result = project.apart(*ON_CPU, "--amp-record=new.json", "--amp-report=md:page.md", "-n", workers)
    assert result.ret == 0
    record = read_record(project.path / "new.json")
    assert (record.complete, [observation.name for observation in record.observations]) == (True, ["x"])
    assert (project.path / "page.md").exists()
    result.stdout.fnmatch_lines(["note      SIGTERM came after the last test: all that was observed is written"])


def test_run_without_outputs_ends_by_the_signal(project: Project) -> None:
    status, _ = ended_by(project, signal.SIGTERM)
    assert status == -signal.SIGTERM


def test_existing_signal_handler_is_retained(project: Project) -> None:
    project.write(
        conftest="import signal\n\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
        test_it="import signal\n\n\ndef test_it(amp):\n    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN\n",
    )
    assert project.apart(*ON_CPU, "--amp-record=new.json").ret == 0


def test_killed_worker_loses_only_its_own_test(project: Project) -> None:
    """Let the worker kill itself, which looks like any other cause."""
    project.write(
        test_it="import os\nimport signal\n\nimport pytest\n\n\n@pytest.mark.parametrize('n', range(6))\n"
        "def test_it(amp, n):\n    amp.observe(f'{n}', n, kind='count')\n"
        "    if n == 2:\n        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    result = project.apart(*ON_CPU, "-n", "1", "--amp-record=new.json", "--amp-report=html:page.html")
    assert result.ret == 1
    (line,) = red(result)
    assert line.startswith("gw0 ended early: ")
    record = read_record(project.path / "new.json")
    assert {observation.name for observation in record.observations} == {"0", "1", "3", "4", "5"}
    assert record.complete is False
    assert (project.path / "page.html").exists()


def limited(size: int) -> Callable[[], None]:
    """Limit the file size in the child. Python ignores the signal, so that a write fails as on a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


MANY = """
import pytest


@pytest.mark.parametrize("n", range(60))
def test_it(amp, n):
    amp.observe(f"{n}", "x" * 200, kind="state")
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_full_disk_is_red_and_leaves_existing_files(project: Project, workers: str) -> None:
    """Existing files stay, no partial file is left, each file is named once, and the run is red."""
    project.write(test_it=MANY)
    before = project.file("report.json", "of the last run")
    files = ("--amp-record=new.json", "--amp-report=json:report.json", "--amp-report=html:page.html")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command(*files, "-n", workers),
        cwd=project.path,
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        preexec_fn=limited(4096),  # a limit for the child alone
    )
    assert done.returncode == 1, done.stdout
    for name in ("new.json", "report.json", "page.html"):
        assert done.stdout.count(f"RED       not written: {project.path / name}: File too large") == 1
    assert before.read_text(encoding="utf-8") == "of the last run"
    assert not (project.path / "new.json").exists()
    assert list(project.path.glob(".*.tmp")) == []
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text[:-3],
        lambda _: "",
        lambda _: "{}",
        lambda text: text.replace('"schema": 4', '"schema": 99'),
        lambda text: text.replace('"kind"', '"sort"'),
        lambda text: text.replace('"rows"', '"lines"'),
        lambda _: "<html></html>",
        lambda _: "\x89PNG",
    ],
    ids=["half", "end", "empty", "foreign", "newer", "other field", "other table", "page", "picture"],
)
def test_invalid_baseline_is_refused_in_one_line(project: Project, damage: Callable[[str], str]) -> None:
    project.write(test_it="def test_it(amp):\n    amp.observe('x', 1, kind='count')\n")
    assert project.here(*ON_CPU, "--amp-record=old.json").ret == 0
    path: Path = project.path / "old.json"
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    result = project.here(*ON_CPU, "--amp-baseline=old.json", "--amp-record=new.json")
    lines = [line for line in result.errlines if line.strip()]
    assert (result.ret, len(lines)) == (4, 1)
    assert lines[0].startswith(f"ERROR: --amp-baseline (command line): {path}: ")
    assert lines[0].endswith("; expected a file that --amp-record wrote")
    assert not (project.path / "new.json").exists()
