"""Process that collects results (pytest-xdist's controller, if any): check options, assign GPUs, count reports."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from pytest_amp.config import AmpConfig
from pytest_amp.run import workers
from pytest_amp.run.session import KEY, AmpSession, Messages

if TYPE_CHECKING:
    from pytest_amp.record import Observation
    from pytest_amp.report.progress import Progress

#: Exit status of a process that was killed (by signal 9).
KILLED = -9
#: Verbosity (number of ``-v``) at which every failure is shown in full.
WHOLE = 2


def check_before_start(options: AmpConfig, config: pytest.Config) -> None:
    """Raise UsageError if an option conflicts with the number of workers, or if a requested device is missing.

    A child process probes the devices, because the controller does not import torch. Without pytest-xdist this function
    does nothing: the devices are probed when the first amp test is collected.
    """
    if not workers.is_controller(config):
        return
    count = workers.worker_count(config)
    indexed = next((name for name in options.named_devices if ":" in name and not name.startswith("fake:")), None)
    if indexed is not None and count > 1:
        raise pytest.UsageError(
            f"{options.where('amp_device')}: {indexed!r} names one device for {count} workers; "
            f"expected {indexed.partition(':')[0]!r}, which gives each worker its own, or one worker"
        )
    if options.speed == "gate" and count > 1:
        from pytest_amp.run.resolution import shared_gpus

        if (problem := shared_gpus(options, config)) is not None:
            raise pytest.UsageError(
                f"{options.where('amp_speed')}: 'gate' cannot time here: {problem}; "
                f"expected off, or at most one worker per GPU"
            )
    _probe_named(options, config)


def _probe_named(options: AmpConfig, config: pytest.Config) -> None:
    names = [name for name in options.named_devices if name != "cpu" and not name.startswith("fake:")]
    if not names or "device" in options.allow_missing:
        return
    from pytest_amp.devices.probe import probe_in_child
    from pytest_amp.run.resolution import unavailable_device

    for name, answer in probe_in_child(names, workers.device_modules(config)).items():
        if not answer.works:
            raise pytest.UsageError(unavailable_device(name, answer, options))


def pin_workers(specs: Sequence[Any]) -> None:
    """Restrict each worker to one GPU by its environment. ``specs`` are the execnet specs of the workers, in order."""
    visible = workers.visible_gpus()
    if not visible:
        return
    for number, spec in enumerate(specs):
        spec.env[workers.VISIBLE] = workers.gpu_of_worker(number, visible)
        spec.env[workers.CALLERS] = ",".join(visible)


def take_in(node: Any, error: object) -> None:  # pytest-xdist has no public type for it
    """Merge the data of a worker into the controller's session. A worker that died sent no data: add a problem."""
    session: AmpSession = node.config.stash[KEY]
    data = getattr(node, "workeroutput", {}).get("amp")
    if data is not None:
        session.from_worker(data)
        session.finished_nodes.append(node)
    elif error and node.gateway.id not in session.isolation.left:
        session.messages.problem(f"{node.gateway.id} ended early: {error}")


def check_exits(nodes: Sequence[Any], ended_by: int | None, messages: Messages) -> None:
    """Add a problem for each worker of ``nodes`` that reported all its tests and then exited with an error.

    execnet has no public API for a worker's exit status; if the private attribute is missing, nothing is reported.
    pytest-xdist kills a worker that does not exit in time. On a busy machine that is no defect, so it is a note, not a
    problem. ``ended_by`` is the signal that ended the run, if any. It may have been sent to the whole process group:
    workers that it terminated are not reported.
    """
    for node in nodes:
        status = getattr(getattr(getattr(node.gateway, "_io", None), "popen", None), "returncode", None)
        if status == KILLED:
            messages.note(f"{node.gateway.id} was slow to end after its tests; none is missing")
        elif status and (ended_by is None or status != -ended_by):
            messages.problem(f"{node.gateway.id} died at exit, after its tests: exit status {status}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Assign a GPU to each worker before it imports torch, if a CUDA device was requested by name."""
    session = config.stash[KEY]
    if workers.asks_for_cuda(session.options.device):
        pin_workers(specs)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # pytest-xdist has no public type for it
    """Send a worker the number of GPUs that the run may use."""
    node.workerinput["amp_gpus"] = len(workers.visible_gpus())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:  # pytest-xdist has no public type for it
    """Receive the data of a worker that ended, or its error."""
    take_in(node, error)


class Recorder:
    """Plugin with the hooks that need the session but receive no config from pytest; registered once per session."""

    def __init__(self, session: AmpSession) -> None:
        """Store the session of this process."""
        self._session = session

    def _data_of(self, report: pytest.TestReport) -> Mapping[str, object] | None:
        """Return the data that this plugin attached to a report; None if the test does not use it.

        pytest-xdist creates the report of a test whose worker crashed, without data: use those of its first report.
        """
        data: Mapping[str, object] | None = getattr(report, "amp", None)
        if data is None and report.when not in ("setup", "call", "teardown"):
            data = self._session.tally.begun.get(report.nodeid)
        return data

    @cached_property
    def _progress(self) -> Progress:
        from pytest_amp.report.progress import Progress

        return Progress()

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
        """Collect nothing from the remaining collectors if torch or a requested device is missing: no test can run."""
        if not self._session.targets.refused:
            return None
        return pytest.CollectReport(collector.nodeid, "passed", longrepr=None, result=[])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the report of a test and publish its observations; with pytest-xdist, only in the controller."""
        config, messages = self._session.config, self._session.messages
        data = self._data_of(report)
        if data is None or workers.is_worker(config):
            return
        from pytest_amp.run import machine_faults

        machine_faults.note_report(report, data, self._session.isolation)
        tally = self._session.tally
        messages.note(*data.get("notes", ()))  # type: ignore[misc]  # values of a report are untyped
        if report.passed and "failed" in data:
            messages.problem(f"{report.nodeid}: a check failed, and the report says that it passed: {data['failed']}")
        self._session.facts.provenance.update(data.get("provenance", {}))  # type: ignore[call-overload]  # as above
        for observation in tally.add(report, data):
            _publish(observation, config, messages)
        self._progress.say(tally.selected, tally.outcomes, config.pluginmanager.get_plugin("terminalreporter"))
        from pytest_amp.text.colour import colour_failure

        colour_failure(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None]:
        """Shorten failures that share a cause before pytest prints them, so that only one is shown in full."""
        session = self._session
        if session.concerned and session.tally.failures and session.config.get_verbosity() < WHOLE:
            from pytest_amp.report.causes import shortened
            from pytest_amp.run.freeze import freeze

            texts = shortened(freeze(session))
            for report in terminalreporter.stats.get("failed", ()):
                if report.when == "call" and report.nodeid in texts:
                    report.longrepr = texts[report.nodeid]
        yield

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        """Exit a worker that can no longer use its device, after the report of the test was sent."""
        if self._session.isolation.poisoned:
            from pytest_amp.run.protection import leave_poisoned_worker

            leave_poisoned_worker(self._session.config, self._session.isolation)


def _publish(observation: Observation, config: pytest.Config, messages: Messages) -> None:
    """Call the hook pytest_amp_observation. If an implementation raises, the run continues, and fails at its end."""
    try:
        config.hook.pytest_amp_observation(observation=observation)
    except pytest.exit.Exception:
        raise
    except Exception as error:  # noqa: BLE001  # a project's own code may raise anything
        from pytest_amp.hookspecs import raised_in

        messages.problem(raised_in("pytest_amp_observation", error))
