"""CPU of the host, which launches an accelerator's work."""

from __future__ import annotations

import functools
import platform
from pathlib import Path


@functools.cache
def cpu_name() -> str:
    """Return the name of the host's CPU, such as ``AMD EPYC 9654 96-Core Processor``; else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, names), "") or platform.processor() or platform.machine()
