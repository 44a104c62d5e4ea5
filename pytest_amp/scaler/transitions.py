"""Transition table of GradScaler: the effect of each call in each stage, explicitly.

The reference model and the real scaler are both compared with it, and docs/reference/scaler.md is made from it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from pytest_amp.scaler.reference import Gradients, ReferenceScaler, Refused, Stage

_RUNTIME, _ASSERTION = "RuntimeError", "AssertionError"


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


def _all(state: State | None = None, error: str = "", words: str = "") -> dict[State, Transition]:
    """Return the same outcome for every state of an enabled scaler that was used."""
    used = (State.READY, State.UNSCALED, State.STEPPED)
    return {item: Transition(state, error, words) for item in used}


def _same() -> dict[State, Transition]:
    return {state: Transition(state) for state in (State.UNUSED, State.READY, State.UNSCALED, State.STEPPED)}


def _unused(method: str) -> dict[State, Transition]:
    return {State.UNUSED: Transition(error=_ASSERTION, words=f"Attempted {method} but _scale is None")}


_TWICE = Transition(
    error=_RUNTIME, words="unscale_() has already been called on this optimizer since the last update()"
)
_AFTER_STEP = Transition(error=_RUNTIME, words="unscale_() is being called after step()")
_STEPPED = Transition(error=_RUNTIME, words="step() has already been called since the last update()")
_NOTHING = Transition(error=_ASSERTION, words="No inf checks were recorded for this optimizer")
_NOTHING_TO_UPDATE = Transition(error=_ASSERTION, words="No inf checks were recorded prior to update")
_FP16 = Transition(error="ValueError", words="Attempting to unscale FP16 gradients.")
_CLOSURE = "Closure use is not currently supported if GradScaler is enabled."
_PICKLE = Transition(error=_ASSERTION, words="may only be pickled at the beginning of an iteration")
_TO_STEPPED = Transition(State.STEPPED)

#: (call, state) to outcome. A disabled scaler has no table: every call passes through it.
TABLE: dict[str, dict[State, Transition]] = {
    "scale": {**_same(), State.UNUSED: Transition(State.READY)},
    "unscale_": {
        **_unused("unscale_"),
        State.READY: Transition(State.UNSCALED),
        State.UNSCALED: _TWICE,
        State.STEPPED: _AFTER_STEP,
    },
    "unscale_, fp16 gradients": {
        **_unused("unscale_"),
        State.READY: _FP16,
        State.UNSCALED: _TWICE,
        State.STEPPED: _AFTER_STEP,
    },
    "step": {
        **_unused("step"),
        State.READY: _TO_STEPPED,
        State.UNSCALED: _TO_STEPPED,
        State.STEPPED: _STEPPED,
    },
    # A step without gradients unscales first, and is UNSCALED when it is refused.
    "step, no gradients": {
        **_unused("step"),
        State.READY: _NOTHING,
        State.UNSCALED: _TO_STEPPED,
        State.STEPPED: _STEPPED,
    },
    "step, fp16 gradients": {
        **_unused("step"),
        State.READY: _FP16,
        State.UNSCALED: _TO_STEPPED,
        State.STEPPED: _STEPPED,
    },
    "step, closure=": {
        **_all(error=_RUNTIME, words=_CLOSURE),
        State.UNUSED: Transition(error=_RUNTIME, words=_CLOSURE),
    },
    "fused step": {
        **_unused("step"),
        State.READY: _TO_STEPPED,
        State.UNSCALED: _TO_STEPPED,
        State.STEPPED: _STEPPED,
    },
    "fused step, no gradients": {
        **_unused("step"),
        State.READY: _TO_STEPPED,
        State.UNSCALED: _TO_STEPPED,
        State.STEPPED: _STEPPED,
    },
    "update": {
        **_unused("update"),
        State.READY: _NOTHING_TO_UPDATE,
        State.UNSCALED: Transition(State.READY),
        State.STEPPED: Transition(State.READY),
    },
    "update(new_scale)": {**_unused("update"), **_all(State.READY)},
    "update(two elements)": {
        **_unused("update"),
        **_all(error=_ASSERTION, words="new_scale should be a float or a 1-element"),
    },
    # No report found: everything but a float is treated as a tensor.
    "update(an int)": {
        **_unused("update"),
        **_all(error="AttributeError", words="'int' object has no attribute 'device'"),
    },
    "load_state_dict": _same(),
    "load_state_dict({})": {
        **_all(error=_RUNTIME, words="The source state dict is empty"),
        State.UNUSED: Transition(error=_RUNTIME, words="The source state dict is empty"),
    },
    # An unpickled scaler has no tensors.
    "pickle": {
        State.UNUSED: Transition(State.UNUSED),
        State.READY: Transition(State.UNUSED),
        State.UNSCALED: _PICKLE,
        State.STEPPED: _PICKLE,
    },
    "queries": _same(),
}

#: States after a refused call, if they differ from the state before it.
LEFT_BY_REFUSALS = {("step, no gradients", State.READY): State.UNSCALED}


def modelled(call: str, state: State) -> Transition:
    """Return the outcome in the reference model: the table's entry, if both are correct."""
    model = ReferenceScaler(enabled=state is not State.DISABLED)
    if state not in (State.DISABLED, State.UNUSED):
        model.scale()
    if state in (State.UNSCALED, State.STEPPED):
        model.unscale_("it", Gradients.FINITE)
    if state is State.STEPPED:
        model.step("it", Gradients.FINITE)
    try:
        model = _made(model, call)
    except Refused as refused:
        return Transition(error=refused.kind.__name__, words=refused.words)
    if not model.enabled:
        return Transition(State.DISABLED)
    if not model.initialized:
        return Transition(State.UNUSED)
    return Transition(_STATES[model.stage("it")])


_STATES = {Stage.READY: State.READY, Stage.UNSCALED: State.UNSCALED, Stage.STEPPED: State.STEPPED}


def _made(model: ReferenceScaler, call: str) -> ReferenceScaler:
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
