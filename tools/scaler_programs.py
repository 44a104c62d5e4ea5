"""Run many random programs of a GradScaler: ``python -m tools.scaler_programs DEVICE DTYPE PROGRAMS [SEED]``.

A hundred programs are drawn from each seed, from SEED on. The programs and calls that agree are counted; one that
disagrees raises an AssertionError with the shrunk example.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from pytest_amp.devices import Device, find_device
from pytest_amp.precision import LOW, Precision
from pytest_amp.scaler.machine import run_programs


def counted_programs(
    device: Device, precision: Precision, programs: int, *, seed: int = 0
) -> Iterator[tuple[int, int]]:
    """Run ``programs`` programs, a hundred from each seed; after each hundred yield the programs and calls so far."""
    done = calls = 0
    while done < programs:
        chunk = min(100, programs - done)
        calls += run_programs(device, precision, programs=chunk, seed=seed + done // 100).total()
        done += chunk
        yield done, calls


def main(arguments: list[str]) -> None:
    """Print the number of agreeing programs after each hundred; raises AssertionError for one that disagrees."""
    device, precision, programs = find_device(arguments[0]), LOW[arguments[1]], int(arguments[2])
    started = time.monotonic()
    seed = int(arguments[3]) if len(arguments) > 3 else 0
    for done, calls in counted_programs(device, precision, programs, seed=seed):
        seconds = time.monotonic() - started
        sys.stdout.write(
            f"{device.describe()}, {precision.name}: {done} programs agree, {calls} calls, {seconds:.0f} s\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
