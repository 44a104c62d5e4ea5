"""Speedups of every kind of work: the calibrated floor of the card, or, without one, hardly slower than float32."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pytest_amp.amp import SuiteAmp
from pytest_amp.devices import DeviceKind
from pytest_amp.run.targets import Target
from pytest_amp.speed import NO_FLOOR, NO_HARM, kinds_of_float32

from .work import ON_A_CPU, SECONDS, WORKS, Work


def works(target: Target) -> Iterable[object]:
    """Yield each piece of work over TF32 if the card has it, else IEEE; work bound by float32 arithmetic over both."""
    kinds = kinds_of_float32(target.device, target.precision)
    for work in ON_A_CPU if target.device.kind is DeviceKind.CPU else WORKS:
        for versus in kinds if work.over_both else kinds[-1:]:
            yield pytest.param((work, versus), id=f"{work.name}, over {versus}")


@pytest.mark.usefixtures("benchmark")
@pytest.mark.amp_parametrize("what", works)
def test_speedup(amp: SuiteAmp, what: tuple[Work, str]) -> None:
    """Check the calibrated floor, or no harm for work bound by arithmetic; the rest is recorded, for baselines."""
    work, versus = what
    amp.check_speedup(
        work.make(amp.device.torch_device),
        name=work.name,
        versus=versus,
        uncalibrated=NO_HARM if work.compute_bound else NO_FLOOR,
        kind=work.kind,
        optimizer=work.optimizer,
        ceiling=work.ceiling,
        seconds=SECONDS[work.kind],
    )
