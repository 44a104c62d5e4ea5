"""Time limits: a test or a run that does not end fails, its name is reported, and its observations are written.

A limit has three stages:

1. A watchdog thread signals the main thread, whose signal handler raises in the test that is running.
2. If the main thread does not return to Python code, for example from a kernel that hangs, the watchdog ends the
   process. Under pytest-xdist the controller reports the test and starts another worker; otherwise the watchdog writes
   the record and the summary itself.
3. If the call also holds the GIL, so that no Python thread runs, faulthandler dumps the traceback and ends the process.
   This stage needs a limit for a test, and is left out if pytest uses that timer itself (``faulthandler_timeout``).
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from types import FrameType

import pytest

from pytest_amp.failure import AmpFailure
from pytest_amp.run import workers
from pytest_amp.run.identity import INFO
from pytest_amp.run.result import Run
from pytest_amp.run.session import Messages

#: Seconds that interrupted code has to return, and the maximum of those between two checks of the watchdog thread.
GRACE, PAUSE = 10.0, 1.0
#: Seconds between two postponements of faulthandler's timeout, which expires once the watchdog thread no longer runs.
POSTPONE_INTERVAL = 5.0
_SIGNAL = getattr(signal, "SIGALRM", None)


class Watchdog:
    """Thread that enforces the limits of one session, and the pytest hook that tells it which test runs."""

    def __init__(
        self,
        limits: tuple[float, float],
        config: pytest.Config,
        messages: Messages,
        conclude: Callable[[pytest.Item | None, str], Run],
    ) -> None:
        """Start the thread; the main thread calls ``close`` at the end.

        ``limits`` are those of a test and of the run, in seconds; 0 is no limit. ``conclude`` receives the test in
        which the run hangs, or None, and the message for it; it writes the files of the run and returns the run.

        Messages go to a duplicate of standard error, since pytest redirects the original during a test.
        """
        self._config, self._messages, self._conclude = config, messages, conclude
        self._limit, self._run_limit = limits
        if workers.is_worker(config):
            self._run_limit = 0.0  # the controller enforces it
        self._began = time.monotonic()
        self._item: pytest.Item | None = None
        self._deadline = 0.0
        self._interrupted = self._run_is_over = False
        self._postponed_at = -math.inf
        self._output = os.dup(2)
        self._stop = threading.Event()
        self._grace = min([GRACE, *filter(None, (self._limit, self._run_limit))])
        self._thread = threading.Thread(target=self._watch, name="pytest-amp time limits", daemon=True)
        self._install()
        self._postpone_faulthandler(self._began)
        self._thread.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Limit one amp test, from the setup of its first fixture to the teardown of its last."""
        if not self._limit or INFO not in item.stash:
            return (yield)
        self._install()
        self._interrupted, self._deadline = False, time.monotonic() + self._limit
        self._item = item
        try:
            return (yield)
        finally:
            self._item = None

    def close(self) -> None:
        """Stop the thread, and remove the signal handler and faulthandler's timeout."""
        self._stop.set()
        self._thread.join()
        if self._postponed_at > 0:
            faulthandler.cancel_dump_traceback_later()
        if _SIGNAL is not None and signal.getsignal(_SIGNAL) == self._interrupt:
            signal.signal(_SIGNAL, signal.SIG_DFL)
        os.close(self._output)

    def _install(self) -> None:
        """Install the handler of SIGALRM, unless another one is installed.

        Called again before each test, since pytest-timeout resets the handler to SIG_DFL after each test.
        """
        main = threading.current_thread() is threading.main_thread()
        if _SIGNAL is not None and main and signal.getsignal(_SIGNAL) is signal.SIG_DFL:
            signal.signal(_SIGNAL, self._interrupt)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """Raise the error that ends the test or the run: the signal handler, which runs in the main thread."""
        if self._run_is_over:
            raise KeyboardInterrupt(self._message())
        if self._item is not None and self._interrupted:
            raise AmpFailure(
                self._message(),
                label_before="limit",
                before=f"{self._limit:g} s for one test (--amp-timeout)",
                likely="a kernel, a rank or a child process hangs, or the test takes longer than that here",
            )

    def _message(self) -> str:
        running = "no test" if self._item is None else self._item.nodeid
        if self._run_is_over:
            return f"the run did not end within {self._run_limit:g} s: {running} ran"
        return f"{running} did not end within {self._limit:g} s"

    def _watch(self) -> None:
        interval = min([PAUSE, *(limit / 10 for limit in (self._limit, self._run_limit) if limit)])
        while not self._stop.wait(interval):
            now, item = time.monotonic(), self._item
            self._postpone_faulthandler(now)
            if self._run_limit and now > self._began + self._run_limit + self._grace and self._run_is_over:
                self._end(item)
            elif self._run_limit and now > self._began + self._run_limit and not self._run_is_over:
                self._run_is_over = True
                self._messages.problem(self._message())
                self._alarm()
            elif item is not None and now > self._deadline + self._grace and self._interrupted:
                self._end(item)
            elif item is not None and now > self._deadline and not self._interrupted:
                self._interrupted = True
                self._alarm()

    def _postpone_faulthandler(self, now: float) -> None:
        """Restart faulthandler's timer, which needs no GIL, unless pytest uses it (``faulthandler_timeout``)."""
        with contextlib.suppress(ValueError):  # the key does not exist without pytest's plugin
            if float(self._config.getini("faulthandler_timeout") or 0):
                return
        if self._limit and now > self._postponed_at + POSTPONE_INTERVAL:
            self._postponed_at = now
            timeout = self._limit + 2 * self._grace + POSTPONE_INTERVAL
            faulthandler.dump_traceback_later(timeout, exit=True, file=self._output)

    def _alarm(self) -> None:
        main = threading.main_thread().ident
        if _SIGNAL is not None and main is not None and signal.getsignal(_SIGNAL) == self._interrupt:
            signal.pthread_kill(main, _SIGNAL)

    def _end(self, item: pytest.Item | None) -> None:
        """End the process, since the main thread does not return to Python code."""
        message = f"{self._message()}, and could not be interrupted"
        self.line(f"\npytest-amp: {message}")
        faulthandler.dump_traceback(file=self._output)
        if not workers.is_worker(self._config):
            try:
                self._write(item, message)
            except BaseException:  # noqa: BLE001  # the process ends, whatever else is broken
                self.line(traceback.format_exc())
        os._exit(1)

    def _write(self, item: pytest.Item | None, message: str) -> None:
        """Write the record and the summary from the watchdog thread."""
        from pytest_amp.report.terminal import summarize

        summarize(self._conclude(item, message), self)  # type: ignore[arg-type]  # the only methods of a terminal that it uses

    def section(self, title: str, sep: str = "=") -> None:
        """Write a section's title, as the terminal's method does."""
        self.line(f" {title} ".center(80, sep))

    def line(self, text: str, **_markup: bool) -> None:
        """Write a line, as the terminal's method does, to the standard error of the process."""
        os.write(self._output, f"{text}\n".encode(sys.getfilesystemencoding(), errors="backslashreplace"))


@contextlib.contextmanager
def watched(
    limits: tuple[float, float],
    config: pytest.Config,
    messages: Messages,
    conclude: Callable[[pytest.Item | None, str], Run],
) -> Iterator[None]:
    """Enforce the limits inside the block; the arguments are those of ``Watchdog``."""
    if not any(limits):
        yield
        return
    watchdog = Watchdog(limits, config, messages, conclude)
    config.pluginmanager.register(watchdog, "amp-watchdog")
    try:
        yield
    finally:
        config.pluginmanager.unregister(watchdog)
        watchdog.close()
