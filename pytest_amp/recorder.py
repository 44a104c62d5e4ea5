"""The hooks that count what reports bring: an object for each session. Nothing here imports torch or numpy."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from pytest_amp import colour, workers
from pytest_amp.session import AmpSession


class Recorder:
    """Hooks that pytest calls without its config, or which come in two ways: one object for each session."""

    def __init__(self, session: AmpSession) -> None:
        """``session`` is the one that counts, or the worker's."""
        self._session = session

    @pytest.hookimpl(tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> pytest.CollectReport | None:
        """Collect nothing more, once it is known that nothing of it can run."""
        if not self._session.refused:
            return None
        return pytest.CollectReport(collector.nodeid, "passed", longrepr=None, result=[])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count, in the process that prints."""
        data = self._session.seen_in(report)
        if data is not None and not workers.is_worker(self._session.config):
            self._session.take_notes(data.get("notes"))
            if report.passed and "failed" in data:
                told = f"a check failed, and the report says that it passed: {data['failed']}"
                self._session.problem(f"{report.nodeid}: {told}")
            self._session.provenance.update(data.get("provenance", {}))  # type: ignore[call-overload]  # of a report
            for observation in self._session.tally.add(report, data):
                self._session.tell(observation)
            terminal = self._session.config.pluginmanager.get_plugin("terminalreporter")
            self._session.progress.say(self._session.tally, terminal)
            colour.colour_failure(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None]:
        """Show failures of one cause once, before pytest shows them."""
        if self._session.concerned:
            from pytest_amp.report.once import shorten

            shorten(self._session, terminalreporter)
        yield

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        """A worker whose device is poisoned leaves, once its report has been sent."""
        if self._session.poisoned:
            from pytest_amp.protection import leave_poisoned_worker

            leave_poisoned_worker(self._session)
