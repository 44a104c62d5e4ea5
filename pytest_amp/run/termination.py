"""Termination of a run by SIGTERM or SIGHUP: the run is interrupted, and its observations are written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

from pytest_amp.run.session import Ending, Messages

#: Signals of a job's scheduler, a container's end and a closed terminal.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


def end_as_interrupted(ending: Ending, messages: Messages) -> Callable[[], None]:
    """Turn the signals into a KeyboardInterrupt, which pytest handles; return a function that restores the handlers.

    Only signals without a handler are handled, and only in the main thread, where Python allows it. While the files are
    written, a signal is ignored. A second signal reaches the previous handlers, so that a user can end the run at once.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    mine = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]

    def restore() -> None:
        for number in mine:
            if signal.getsignal(number) is interrupt:
                signal.signal(number, signal.SIG_DFL)

    def interrupt(number: int, _frame: FrameType | None) -> None:
        restore()
        name = signal.Signals(number).name
        ending.signal = number
        if ending.finishing:
            messages.note(f"{name} came after the last test: all that was observed is written")
            return
        messages.note(f"ended by {name}: what was observed until then is written")
        raise KeyboardInterrupt(name)

    for number in mine:
        signal.signal(number, interrupt)
    return restore
