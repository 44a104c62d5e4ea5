"""nanmean ends its process, as a bad kernel does, when it runs in a region."""

from __future__ import annotations

import os
import signal

from overriding import Overridden, override


def _die(_call: Overridden) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


override("nanmean", _die, device_types=["cpu"])
