"""Golden traces: a thousand updates with a fixed pattern of infs give one sequence of scales, on every device.

The digest of each sequence is stored here, so that torch, its model and the pattern cannot change together.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.scaler import UpdateRule
from pytest_amp.speed.replay import capturing

from .training import INF, ScalerFactory

_UPDATES = 1000
#: Factors that are not powers of two, so that the rounding of each product shows.
_RULES = {
    "usual": (2.0**16, UpdateRule(2.0, 0.5, 20)),
    "odd factors": (1.1, UpdateRule(1.7, 0.3, 3)),
    "to the largest": (2.0**126, UpdateRule(3.0, 0.01, 2)),
    "to zero": (2.0**-100, UpdateRule(2.0, 0.3, 21)),
}
#: Digests of the scales and growth trackers of all updates, as JSON.
_DIGESTS = {
    "usual": "e3d592b9e3156987",
    "odd factors": "5e940d0b11edb5c7",
    "to the largest": "83d7e336dad654d3",
    "to zero": "00bcb306d41fc09d",
}


def pattern(name: str) -> list[bool]:
    """Return the updates with an inf: single ones, bursts, and long clean stretches."""
    source = random.Random(f"golden {name}")  # noqa: S311  # a fixed pattern
    steps: list[bool] = []
    while len(steps) < _UPDATES:
        steps += [False] * source.choice((1, 3, 20, 21, 60)) + [True] * source.choice((1, 1, 2, 5))
    return steps[:_UPDATES]


def _digest(trace: list[tuple[float, int]]) -> str:
    return hashlib.sha256(json.dumps(trace).encode()).hexdigest()[:16]


def _modelled(name: str) -> list[tuple[float, int]]:
    scale, rule = _RULES[name]
    scale, tracker = float(torch.tensor(scale)), 0
    trace = []
    for bad in pattern(name):
        scale, tracker = rule.after(scale, tracker, found_inf=bad)
        trace.append((scale, tracker))
    return trace


def _scaler(amp_scaler: ScalerFactory, name: str) -> torch.amp.GradScaler:
    scale, rule = _RULES[name]
    return amp_scaler(
        init_scale=scale,
        growth_factor=rule.growth_factor,
        backoff_factor=rule.backoff_factor,
        growth_interval=rule.growth_interval,
    )


def _expect(amp: SuiteAmp, name: str, actual: list[tuple[float, int]], how: str) -> None:
    """Raise AmpFailure at the first update that differs from the model's."""
    correct = _modelled(name)
    for update, (real, expected) in enumerate(zip(actual, correct, strict=True)):
        if real != expected:
            raise AmpFailure(
                f"the golden trace '{name}', {how}, differs at update {update}",
                label_before="rule",
                before=f"scale {expected[0]}, tracker {expected[1]}",
                now=f"scale {real[0]}, tracker {real[1]} on torch {torch.__version__}, {amp.device.describe()}",
                likely="_amp_update_scale_ follows another rule, or rounds otherwise",
            )
    amp.observe(f"golden trace {name}, {how}", _digest(actual), kind="state")
    assert _digest(actual) == _DIGESTS[name], "the model and torch agree on another trace than the golden one"


class Subject:
    """Parameter, an optimizer that does not move it, and the two ways of checking its gradient and updating."""

    def __init__(self, amp: SuiteAmp, scaler: torch.amp.GradScaler, way: str) -> None:
        """Take ``way``, one of WAYS."""
        device = amp.device.torch_device
        self.scaler, self.way = scaler, way
        self.parameter = nn.Parameter(torch.ones(1, device=device))
        self.optimizer = torch.optim.SGD([self.parameter], lr=0.0, fused=way == "fused step")
        self.gradient = self.parameter.grad = torch.zeros_like(self.parameter)
        scaler.scale(torch.zeros((), device=device))

    def iterate(self) -> None:
        """Run the end of an iteration."""
        if self.way == "unscale_":
            self.scaler.unscale_(self.optimizer)
        else:
            self.scaler.step(self.optimizer)
        self.scaler.update()

    def trace(self, name: str, iterate: Callable[[], object]) -> list[tuple[float, int]]:
        """Return scale and tracker after each update of the pattern."""
        states = []
        for bad in pattern(name):
            self.gradient.fill_(INF if bad else 0.0)
            iterate()
            state = self.scaler.state_dict()
            states.append((state["scale"], state["_growth_tracker"]))
        return states


WAYS = pytest.mark.parametrize("way", ["unscale_", "fused step"])


@WAYS
@pytest.mark.parametrize("name", _RULES)
def test_eager_trace(amp: SuiteAmp, amp_scaler: ScalerFactory, name: str, way: str) -> None:
    subject = Subject(amp, _scaler(amp_scaler, name), way)
    _expect(amp, name, subject.trace(name, subject.iterate), f"eager, {way}")


@pytest.mark.amp(devices=["cuda"])
@WAYS
@pytest.mark.parametrize("name", _RULES)
def test_captured_trace(amp: SuiteAmp, amp_scaler: ScalerFactory, name: str, way: str) -> None:
    """Replay the check, the fused step and the update in a CUDA graph a thousand times, without the host."""
    subject = Subject(amp, _scaler(amp_scaler, name), way)
    start = subject.scaler.state_dict()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # warm up, as capturing requires
        for _ in range(3):
            subject.iterate()
    torch.cuda.current_stream().wait_stream(stream)
    subject.scaler.load_state_dict(start)
    with capturing(graph):
        subject.iterate()
    _expect(amp, name, subject.trace(name, graph.replay), f"captured, {way}")
    if name != "to zero":  # where the gradient, zero, is divided by zero
        assert float(subject.parameter) == 1.0, "a skipped step reached the parameter"
