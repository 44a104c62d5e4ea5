"""Stand-ins for the function that examines an operator, which harm a child process as a bad kernel does."""

from __future__ import annotations

import atexit
import os
import signal
import time
from typing import Any


def examine(request: dict[str, Any], device: Any) -> dict[str, Any]:
    """Do what the name of the overload says, or return a result."""
    overload = request["overload"]
    if overload == "exits":
        os._exit(3)
    if overload == "is killed":
        os.kill(os.getpid(), signal.SIGSEGV)
    if overload == "poisons":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if overload == "raises":
        raise ValueError("no such thing")
    if overload == "hangs":
        time.sleep(60)
    if overload == "prints":
        print("not an answer")  # noqa: T201  # on purpose
    if overload == "spoils the exit":
        atexit.register(os._exit, 9)
    return {**request, "device": device.name, "pid": os.getpid()}
