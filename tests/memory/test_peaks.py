"""Peaks of memory, from a simulated allocator: that of a CPU counts nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from pytest_amp.cases import Case
from pytest_amp.devices import find_device
from pytest_amp.failure import AmpFailure
from pytest_amp.memory import Passes, Peak, check_memory, peak_of, peaks
from pytest_amp.memory import limits as checks
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.precision import BF16
from tests.observing import Noted, unheeded

WHERE = Conditions(find_device("cpu"), BF16)
HELD = 1000


@dataclass
class Counted:
    """Peaks of steps beyond HELD bytes, step after step: of mixed precision, then of float32."""

    steps: Iterator[int]
    emptied: list[str] = field(default_factory=list)
    counts: bool = True

    @property
    def allocated(self) -> int:
        return HELD

    @property
    def reserved(self) -> int:
        return 2 * HELD

    def empty(self) -> None:
        self.emptied.append("before the step that counts")

    @property
    def peaks(self) -> tuple[int, int]:
        most = next(self.steps)
        return HELD + most, 2 * HELD + 2 * most


def counting(monkeypatch: pytest.MonkeyPatch, *steps: int) -> Counted:
    counted = Counted(iter(steps))
    for module in (peaks, checks):
        monkeypatch.setattr(module, "Allocator", lambda _: counted)
    return counted


def case() -> Case:
    return Case("it", lambda: nn.Linear(8, 8), lambda: torch.randn(4, 8), lambda model, x: model(x).float().sum())


def test_peak_excludes_memory_allocated_before(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = counting(monkeypatch, 600)
    passes = Passes(case(), WHERE)
    assert peak_of(passes, passes.amp()) == Peak(allocated=600, reserved=1200)
    assert len(counted.emptied) == 1
    assert all(parameter.grad is None for parameter in passes.realised.model.parameters())


def test_peaks_are_observed_and_have_a_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = Noted()
    counting(monkeypatch, 600, 1000)
    use = check_memory(case(), WHERE, observed.observe, plain=case(), peak_ceiling=0.6)
    assert use.peak_ratio == 0.6
    names = ("peak of tensors", "peak allocated", "peak allocated in fp32", "peak reserved", "peak allocated over fp32")
    assert [observed[f"it/{name}"] for name in names] == [use.tensors, 600, 1000, 1200, 0.6]
    size = {"kind": "bytes", "unit": "bytes"}
    facts = [{**size, "better": "lower"}, size, size, size, {"kind": "ratio", "allowed": 0.6}]
    assert [observed.facts[f"it/{name}"] for name in names] == facts, "what libraries allocate has no direction"
    counting(monkeypatch, 610, 1000)
    with pytest.raises(AmpFailure, match=r"it takes at its peak 0\.61 times what float32 does"):
        check_memory(case(), WHERE, unheeded, plain=case(), peak_ceiling=0.6)
