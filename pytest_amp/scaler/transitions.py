"""Transition table of GradScaler: the effect of each call in each stage, as the reference model makes it.

The real scaler is compared with this table, and docs/reference/scaler.md prints it, so that a change of the model is
visible there.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pytest_amp.scaler.reference import Gradients, ReferenceScaler, Refused, Stage


class State(enum.Enum):
    """State of a scaler, as seen by one of its optimizers."""

    DISABLED = "disabled"
    UNUSED = "before the first scale"
    READY = "READY"
    UNSCALED = "UNSCALED"
    STEPPED = "STEPPED"


@dataclass(frozen=True)
class Transition:
    """Outcome of a call: the new state, or an exception's type and words; an exception keeps the state."""

    state: State | None = None
    error: str = ""
    words: str = ""

    def __str__(self) -> str:
        """Return the outcome as in the documentation."""
        return self.state.value if self.state else f"{self.error}: {self.words}"


#: Calls of the table, in the order of an iteration; gradients are finite unless the name says otherwise.
CALLS = (
    "scale",
    "unscale_",
    "unscale_, fp16 gradients",
    "step",
    "step, no gradients",
    "step, fp16 gradients",
    "step, closure=",
    "fused step",
    "fused step, no gradients",
    "update",
    "update(new_scale)",
    "update(two elements)",
    "update(an int)",
    "load_state_dict",
    "load_state_dict({})",
    "pickle",
    "queries",
)


#: States of an enabled scaler. A disabled one has no table: every call passes through it.
STATES = (State.UNUSED, State.READY, State.UNSCALED, State.STEPPED)


def outcome(call: str, state: State) -> tuple[Transition, State]:
    """Return the transition of a call in the reference model, and the state after it, refused or not."""
    model = ReferenceScaler(enabled=state is not State.DISABLED)
    if state not in (State.DISABLED, State.UNUSED):
        model.scale()
    if state in (State.UNSCALED, State.STEPPED):
        model.unscale_("it", Gradients.FINITE)
    if state is State.STEPPED:
        model.step("it", Gradients.FINITE)
    try:
        model = _called(model, call)
    except Refused as refused:
        return Transition(error=refused.kind.__name__, words=refused.words), _state(model)
    return Transition(_state(model)), _state(model)


def _state(model: ReferenceScaler) -> State:
    """Return the state of a reference model that has one optimizer."""
    if not model.enabled:
        return State.DISABLED
    if not model.initialized:
        return State.UNUSED
    return {Stage.READY: State.READY, Stage.UNSCALED: State.UNSCALED, Stage.STEPPED: State.STEPPED}[model.stage("it")]


def _called(model: ReferenceScaler, call: str) -> ReferenceScaler:
    """Return ``model`` after ``call``, or its unpickled copy."""
    gradients = Gradients.NONE if "no gradients" in call else Gradients.FINITE
    fp16 = "fp16" in call
    method = call.partition(",")[0]
    if method == "scale":
        model.scale()
    elif method == "unscale_":
        model.unscale_("it", gradients, fp16=fp16)
    elif method in ("step", "fused step"):
        model.step("it", gradients, fp16=fp16, fused=method == "fused step", closure="closure" in call)
    elif method.startswith("update"):
        new = 4.0 if "new_scale" in call else 4 if "int" in call else None
        model.update(new, usable="two elements" not in call)
    elif method.startswith("load_state_dict"):
        model.load_state_dict({} if "{}" in call else ReferenceScaler().state_dict())
    elif method == "pickle":
        return model.pickled()
    else:
        model.get_scale()
        model.state_dict()
    return model


_OUTCOMES = {(call, state): outcome(call, state) for call in CALLS for state in STATES}

#: (call, state) to outcome.
TABLE = {call: {state: _OUTCOMES[call, state][0] for state in STATES} for call in CALLS}

#: States after a call that raised, if they differ from the state before it: ``step`` without gradients has unscaled.
LEFT_BY_REFUSALS = {
    (call, before): after
    for (call, before), (transition, after) in _OUTCOMES.items()
    if transition.error and after is not before
}
