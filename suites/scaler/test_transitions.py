"""Transition table: the effect of each call in each stage, and the message where it is refused.

The table is ``pytest_amp/scaler/transitions.py``, and is printed in docs/reference/scaler.md.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_amp.amp import SuiteAmp
from pytest_amp.failure import AmpFailure
from pytest_amp.scaler.transitions import LEFT_BY_REFUSALS, TABLE, State, Transition
from pytest_amp.torch_private import optimizer_stage, scales_its_own_step

from .training import ScalerFactory


class Subject:
    """Scaler and optimizer with finite gradients, brought into a state by the calls that lead there."""

    def __init__(self, amp: SuiteAmp, scaler: torch.amp.GradScaler, state: State, call: str) -> None:
        """Choose the optimizer for ``call``: fused or not, float16 or not."""
        self.amp, self.scaler = amp, scaler
        fused = call.startswith("fused")
        self.parameter = nn.Parameter(torch.ones(3, device=amp.device.torch_device))
        self.optimizer = torch.optim.SGD([self.parameter], lr=0.5, fused=fused)
        assert scales_its_own_step(self.optimizer) == fused
        self.parameter.grad = torch.ones_like(self.parameter)
        if state not in (State.UNUSED, State.DISABLED):
            scaler.scale(self.parameter.sum())
        if state in (State.UNSCALED, State.STEPPED):
            scaler.unscale_(self.optimizer)
        if state is State.STEPPED:
            scaler.step(self.optimizer)
        if "fp16" in call:  # after the calls before, which would have refused it
            self.parameter.data = self.parameter.data.half()
            self.parameter.grad = torch.ones_like(self.parameter)
        if "no gradients" in call:
            self.parameter.grad = None

    def make(self, call: str) -> None:
        """Make the call of the table."""
        device, optimizer = self.amp.device.torch_device, self.optimizer
        scaler: Any = self.scaler
        keywords: dict[str, Any] = {"closure": lambda: 0.0} if "closure" in call else {}
        makers: dict[str, Callable[[], object]] = {
            "scale": lambda: scaler.scale(torch.ones((), device=device)),
            "unscale_": lambda: scaler.unscale_(optimizer),
            "step": lambda: scaler.step(optimizer, **keywords),
            "fused step": lambda: scaler.step(optimizer, **keywords),
            "update": scaler.update,
            "update(new_scale)": lambda: scaler.update(4.0),
            "update(two elements)": lambda: scaler.update(torch.ones(2, device=device)),
            "update(an int)": lambda: scaler.update(4),
            "load_state_dict": lambda: scaler.load_state_dict(scaler.state_dict()),
            "load_state_dict({})": lambda: scaler.load_state_dict({}),
            "pickle": lambda: pickle.loads(pickle.dumps(scaler)),  # noqa: S301  # pickled just now
            "queries": lambda: (scaler.get_scale(), scaler.state_dict(), scaler.is_enabled()),
        }
        method = call.partition(",")[0]
        result = makers[method]()
        if method == "pickle":
            assert isinstance(result, torch.amp.GradScaler)
            self.scaler = result

    @property
    def state(self) -> State:
        """Return the current state; a copy's ``update`` shows whether there are tensors."""
        if not self.scaler.is_enabled():
            return State.DISABLED
        stage = optimizer_stage(self.scaler, self.optimizer)
        if stage != "ready":
            return State(stage.upper())
        try:
            self.scaler.update()
        except AssertionError as error:
            return State.UNUSED if "_scale is None" in str(error) else State.READY
        return State.READY


CELLS = [(state, call) for call, outcomes in TABLE.items() for state in outcomes]


@pytest.mark.parametrize(("state", "call"), CELLS, ids=[f"{call} in {state.value}" for state, call in CELLS])
def test_transition(amp: SuiteAmp, amp_scaler: ScalerFactory, state: State, call: str) -> None:
    """Compare the stage afterwards, or the exception with its words; a refused call changes no stage."""
    subject = Subject(amp, amp_scaler(init_scale=8.0), state, call)
    expected = TABLE[call][state]
    actual = Transition(State.UNUSED)
    try:
        subject.make(call)
    except (RuntimeError, AssertionError, ValueError, AttributeError) as error:
        words = expected.words if expected.words and expected.words in str(error) else str(error)
        actual = Transition(error=type(error).__name__, words=words)
        assert subject.state is LEFT_BY_REFUSALS.get((call, state), state), "a refused call moved the optimizer"
    else:
        actual = Transition(subject.state)
    amp.observe(f"{call} in {state.value}", actual.error or str(actual), kind="state")
    if actual != expected:
        raise AmpFailure(
            f"'{call}' in the state {state.value} ends otherwise than it has to",
            label_before="rule",
            before=f"{expected} (pytest_amp/scaler/transitions.py)",
            now=" ".join(str(actual).split()),
            likely="the stage of an optimizer (torch/amp/grad_scaler.py, OptState) is not kept or not checked",
        )


@pytest.mark.parametrize("call", list(TABLE))
def test_a_disabled_scaler_lets_every_call_through(amp: SuiteAmp, amp_scaler: ScalerFactory, call: str) -> None:
    if "fp16" in call and amp.device.type == "mps":
        pytest.skip("SGD of float16")
    subject = Subject(amp, amp_scaler(enabled=False), State.DISABLED, call)
    subject.make(call)
    assert subject.state is State.DISABLED
    assert subject.scaler.get_scale() == 1.0


def test_a_fused_optimizer_whose_gradients_come_after_unscale(amp: SuiteAmp, amp_scaler: ScalerFactory) -> None:
    """Fused optimizers step, or raise with a message, such as the loop's "No inf checks were recorded"."""
    subject = Subject(amp, amp_scaler(init_scale=8.0), State.READY, "fused step, no gradients")
    subject.scaler.unscale_(subject.optimizer)
    subject.parameter.grad = torch.ones_like(subject.parameter)
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        subject.scaler.step(subject.optimizer)
