"""Child processes in which the checks of an operator run, for all tests of this family.

pytest loads this file before it knows whether a test of the family runs: torch is imported in the fixtures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_amp.child_process import plugin_modules
from pytest_amp.failure import AmpFailure

if TYPE_CHECKING:
    from pytest_amp.amp import SuiteAmp
    from pytest_amp.devices import Device
    from pytest_amp.rules.sweep import Sweep

    from .operators import Examiner


class Sweeps:
    """Sweep of each device, opened when it is first needed."""

    def __init__(self, modules: list[str]) -> None:
        """Name the ``modules`` that a child process imports before torch."""
        self._modules = modules
        self._opened: dict[str, Sweep] = {}

    def on(self, device: Device) -> Sweep:
        """Return the sweep of ``device``."""
        from pytest_amp.rules.sweep import open_sweep

        if device.name not in self._opened:
            self._opened[device.name] = open_sweep(device, modules=self._modules, path=sys.path)
        return self._opened[device.name]

    def close(self) -> None:
        """Close all sweeps; a child process that ends badly is a failure."""
        from pytest_amp.rules.sweep import ExaminationFailed

        failures = []

        def close(name: str, sweep: Sweep) -> None:
            try:
                sweep.close()
            except ExaminationFailed as failed:
                failures.append(f"{name}: {failed}")

        for name, sweep in self._opened.items():
            close(name, sweep)
        if failures:
            raise AmpFailure("the operators were examined, but " + "; ".join(failures))


@pytest.fixture(scope="session")
def sweeps(request: pytest.FixtureRequest) -> Iterator[Sweeps]:
    """Return the sweeps of this session."""
    opened = Sweeps(plugin_modules(request.config))
    yield opened
    opened.close()


@pytest.fixture
def examine(amp: SuiteAmp, sweeps: Sweeps) -> Examiner:
    """Return a function that examines an operator on device and dtype: ``examine("hand_cast", "aten::mm")``."""
    from .operators import Examiner

    return Examiner(amp, sweeps.on(amp.device))
