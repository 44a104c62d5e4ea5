"""Controller of pytest-xdist: check options before workers start, assign GPUs, receive data, and count reports."""

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
#: Number of ``-v`` from which every failure is shown in full.
WHOLE = 2


def check_before_start(options: AmpConfig, config: pytest.Config) -> None:
    """Raise UsageError for options that cannot work with these workers, and for a missing device.

    A child process probes the devices, because the controller does not import torch. Without pytest-xdist nothing is
    checked here: the devices are probed when the first amp test is collected.
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
    """Set the GPU of each worker in its environment. ``specs`` are the execnet specs of the workers, in order."""
    visible = workers.visible_gpus()
    if not visible:
        return
    for number, spec in enumerate(specs):
        spec.env[workers.VISIBLE] = workers.gpu_of_worker(number, visible)
        spec.env[workers.CALLERS] = ",".join(visible)


def take_in(node: Any, error: object) -> None:  # pytest-xdist has no public type for it
    """Merge a worker's data into the controller's session; a worker that died has not sent any."""
    session: AmpSession = node.config.stash[KEY]
    data = getattr(node, "workeroutput", {}).get("amp")
    if data is not None:
        session.from_worker(data)
        session.finished_nodes.append(node)
    elif error and node.gateway.id not in session.isolation.left:
        session.messages.problem(f"{node.gateway.id} ended early: {error}")


def check_exits(nodes: Sequence[Any], ended_by: int | None, messages: Messages) -> None:
    """Note a problem for each worker of ``nodes`` that reported all its tests and then died.

    execnet has no public API for a worker's exit status; if the private attribute is missing, nothing is reported.
    pytest-xdist kills a worker that does not exit in time, which on a busy machine indicates no defect: that is a note
    instead of a problem. The signal ``ended_by`` that ended the run may have been sent to the whole process group, so
    workers that it ended are not reported.
    """
    for node in nodes:
        status = getattr(getattr(getattr(node.gateway, "_io", None), "popen", None), "returncode", None)
        if status == KILLED:
            messages.note(f"{node.gateway.id} was slow to end after its tests; none is missing")
        elif status and (ended_by is None or status != -ended_by):
            messages.problem(f"{node.gateway.id} died at exit, after its tests: exit status {status}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Give each worker its own GPU, before it imports torch."""
    session = config.stash[KEY]
    if workers.asks_for_cuda(session.options.device):
        pin_workers(specs)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # pytest-xdist has no public type for it
    """Send the number of GPUs of the run to a worker."""
    node.workerinput["amp_gpus"] = len(workers.visible_gpus())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:  # pytest-xdist has no public type for it
    """Receive a worker's data, or the error with which it ended."""
    take_in(node, error)


class Recorder:
    """Plugin object with the hooks that do not receive the config; one for each session."""

    def __init__(self, session: AmpSession) -> None:
        """Store ``session``, which is that of this process."""
        self._session = session

    def _data_of(self, report: pytest.TestReport) -> Mapping[str, object] | None:
        """Return a report's data of an amp test; for pytest-xdist's report of a dead worker, the test's first data."""
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
        """Skip the remaining collection if a requested device is missing, so that no test can run."""
        if not self._session.targets.refused:
            return None
        return pytest.CollectReport(collector.nodeid, "passed", longrepr=None, result=[])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a report; workers leave this to the controller."""
        config, messages = self._session.config, self._session.messages
        data = self._data_of(report)
        if data is None or workers.is_worker(config):
            return
        from pytest_amp.run import machine_faults

        machine_faults.note_report(report, data, self._session.isolation)
        tally = self._session.tally
        messages.note(*data.get("notes", ()))  # type: ignore[misc]  # from a report
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
        """Shorten failures with the same cause before pytest prints them: only one is shown in full."""
        session = self._session
        if session.concerned and session.tally.failures and session.config.get_verbosity() < WHOLE:
            from pytest_amp.report.once import shortened
            from pytest_amp.run.freeze import freeze

            texts = shortened(freeze(session))
            for report in terminalreporter.stats.get("failed", ()):
                if report.when == "call" and report.nodeid in texts:
                    report.longrepr = texts[report.nodeid]
        yield

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        """End a worker whose device no longer answers, once the test's report has been sent."""
        if self._session.isolation.poisoned:
            from pytest_amp.run.protection import leave_poisoned_worker

            leave_poisoned_worker(self._session.config, self._session.isolation)


def _publish(observation: Observation, config: pytest.Config, messages: Messages) -> None:
    """Pass ``observation`` to the hook. If the hook raises, the run continues and fails at its end."""
    try:
        config.hook.pytest_amp_observation(observation=observation)
    except pytest.exit.Exception:
        raise
    except Exception as error:  # noqa: BLE001  # a project's own code may raise anything
        from pytest_amp.hookspecs import raised_in

        messages.problem(raised_in("pytest_amp_observation", error))
