"""Controller of pytest-xdist: check options before workers start, assign GPUs, receive data, and count reports."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest

from pytest_amp.run import machine_faults, workers
from pytest_amp.run.session import KEY, AmpSession

#: Exit status of a process that was killed (by signal 9).
KILLED = -9
#: Number of ``-v`` from which every failure is shown in full.
WHOLE = 2


def check_before_start(session: AmpSession) -> None:
    """Raise UsageError for options that cannot work with these workers, and for a missing device.

    A child process probes the devices, because the controller does not import torch. Without pytest-xdist nothing is
    checked here: the devices are probed when the first amp test is collected.
    """
    if not workers.is_controller(session.config):
        return
    options = session.options
    count = workers.worker_count(session.config)
    indexed = next((name for name in options.named_devices if ":" in name and not name.startswith("fake:")), None)
    if indexed is not None and count > 1:
        raise pytest.UsageError(
            f"{options.where('amp_device')}: {indexed!r} names one device for {count} workers; "
            f"expected {indexed.partition(':')[0]!r}, which gives each worker its own, or one worker"
        )
    if options.speed == "gate" and count > 1:
        from pytest_amp.run.resolution import shared_gpus

        if (problem := shared_gpus(options, session.config)) is not None:
            raise pytest.UsageError(
                f"{options.where('amp_speed')}: 'gate' cannot time here: {problem}; "
                f"expected off, or at most one worker per GPU"
            )
    _probe_named(session)


def _probe_named(session: AmpSession) -> None:
    options = session.options
    names = [name for name in options.named_devices if name != "cpu" and not name.startswith("fake:")]
    if not names or "device" in options.allow_missing:
        return
    from pytest_amp.devices.probe import probe_in_child
    from pytest_amp.run.resolution import unavailable_device

    for name, answer in probe_in_child(names, workers.device_modules(session.config)).items():
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
    elif error and node.gateway.id not in session.left:
        session.problems.append(f"{node.gateway.id} ended early: {error}")


def check_exits(session: AmpSession) -> None:
    """Note a problem for each worker that reported all its tests and then died.

    execnet has no public API for a worker's exit status; if the private attribute is missing, nothing is reported.
    pytest-xdist kills a worker that does not exit in time, which on a busy machine indicates no defect: that is a note
    instead of a problem. A signal that ended the run may have been sent to the whole process group, so workers that it
    ended are not reported.
    """
    for node in session.finished_nodes:
        status = getattr(getattr(getattr(node.gateway, "_io", None), "popen", None), "returncode", None)
        if status == KILLED:
            session.notes.append(f"{node.gateway.id} was slow to end after its tests; none is missing")
        elif status and (session.ended_by is None or status != -session.ended_by):
            session.problems.append(f"{node.gateway.id} died at exit, after its tests: exit status {status}")


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

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
        """Skip the remaining collection if a requested device is missing, so that no test can run."""
        if not self._session.refused:
            return None
        return pytest.CollectReport(collector.nodeid, "passed", longrepr=None, result=[])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a report; workers leave this to the controller."""
        session, data = self._session, self._session.data_of(report)
        if data is None or workers.is_worker(session.config):
            return
        machine_faults.note_report(report, data, session)
        session.add_notes(data.get("notes"))
        if report.passed and "failed" in data:
            session.problem(f"{report.nodeid}: a check failed, and the report says that it passed: {data['failed']}")
        session.provenance.update(data.get("provenance", {}))  # type: ignore[call-overload]  # from a report
        for observation in session.tally.add(report, data):
            session.publish(observation)
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        session.progress.say(session.tally.selected, session.tally.outcomes, terminal)
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
        if self._session.poisoned:
            from pytest_amp.run.protection import leave_poisoned_worker

            leave_poisoned_worker(self._session)
