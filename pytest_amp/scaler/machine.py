"""Random programs of GradScaler calls as a state machine of hypothesis, which shrinks a program that disagrees.

hypothesis is in the extra ``suites``; nothing else of the package imports this module.
"""

from __future__ import annotations

import collections
from typing import Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pytest_amp.devices import Device
from pytest_amp.precision import Precision
from pytest_amp.scaler.programs import KINDS, Lane, SideBySide
from pytest_amp.scaler.reference import ReferenceScaler, UpdateRule

_LANES = st.integers(0, 2)
_RULES = st.builds(UpdateRule, st.sampled_from((2.0, 4.0)), st.sampled_from((0.5, 0.25)), st.sampled_from((1, 2, 3, 5)))
_SCALES = st.integers(0, 13).map(lambda exponent: 2.0**exponent)


class Programs(RuleBasedStateMachine):
    """Random program: each rule makes a call on both sides, and both are compared after each."""

    def __init__(self, device: Device, precision: Precision, calls: collections.Counter[str]) -> None:
        """Keep the target; ``calls`` counts the calls of all programs."""
        super().__init__()
        self.device, self.precision, self.calls = device, precision, calls
        self.both: SideBySide | None = None

    @initialize(
        scale=_SCALES,
        update_rule=_RULES,
        enabled=st.sampled_from((True,) * 7 + (False,)),
        kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3),
    )
    def start(self, *, scale: float, update_rule: UpdateRule, enabled: bool, kinds: list[str]) -> None:
        """Start with a fresh scaler, mostly enabled, and one to three optimizers."""
        self.both = SideBySide(self.device, self.precision, ReferenceScaler(scale, update_rule, enabled=enabled), kinds)

    def _side(self, call: str) -> SideBySide:
        self.calls[call] += 1
        assert self.both is not None
        return self.both

    def _lane(self, index: int) -> Lane:
        assert self.both is not None
        return self.both.lanes[index % len(self.both.lanes)]

    @rule(form=st.sampled_from(("tensor", "list", "nested", "generator")))
    def scale(self, form: str) -> None:
        """Scale a loss in one of the forms that ``scale`` takes."""
        self._side(f"scale {form}").scale(form)

    @rule(lanes=st.lists(_LANES, min_size=1, max_size=3), together=st.booleans())
    def backward(self, lanes: list[int], *, together: bool) -> None:
        """Scale the losses of some optimizers, in one sum (``together``) or separately, and run backward."""
        self._side("backward").backward(lanes, together=together)

    @rule(lane=_LANES)
    def another_backward(self, lane: int) -> None:
        """Run backward for one optimizer: most calls need gradients, so this rule makes backward more frequent."""
        self._side("backward").backward([lane], together=False)

    @rule(
        lane=_LANES,
        index=st.integers(0, 3),
        bad=st.sampled_from((float("inf"), float("-inf"), float("nan"))),
    )
    def plant(self, lane: int, index: int, bad: float) -> None:
        """Set one gradient to a nonfinite value."""
        self._side("plant").plant(self._lane(lane), index, bad)

    @rule(lane=_LANES, bound=st.sampled_from((0.5, 2.0, 64.0)))
    def clip_value(self, lane: int, bound: float) -> None:
        """Clip each gradient of one optimizer, unscaled or not."""
        self._side("clip value").clip_value(self._lane(lane), bound)

    @rule(lane=_LANES)
    def clip_norm(self, lane: int) -> None:
        """Clip the norm of one optimizer's gradients, unscaled or not."""
        self._side("clip norm").clip_norm(self._lane(lane))

    @rule(lane=_LANES)
    def unscale_(self, lane: int) -> None:
        """Unscale one optimizer's gradients, at any time and any number of times."""
        self._side("unscale_").unscale_(self._lane(lane))

    @rule(lane=_LANES, closure=st.sampled_from((False,) * 7 + (True,)))
    def step(self, lane: int, *, closure: bool) -> None:
        """Step one optimizer; rarely with a closure, which is refused."""
        self._side("step with a closure" if closure else "step").step(self._lane(lane), closure=closure)

    @rule()
    def step_all(self) -> None:
        """Step every optimizer: the usual end of an iteration."""
        for lane in self._side("step").lanes:
            self._side("step").step(lane, closure=False)

    @rule()
    def iteration(self) -> None:
        """Run a whole iteration, so that scales grow and back off more than once in a program."""
        both = self._side("iteration")
        both.backward(range(len(both.lanes)), together=False)
        self.step_all()
        both.update()

    @rule()
    def update(self) -> None:
        """Update the scale by the rule."""
        self._side("update").update()

    @rule(new=_SCALES, form=st.sampled_from(("float", "tensor", "int", "vector", "requires grad")))
    def new_scale(self, new: float, form: str) -> None:
        """Set the scale, in a form that ``update`` accepts or one that it refuses."""
        self._side(f"update with a {form}").new_scale(new, form)

    @rule(update_rule=_RULES)
    def set_rule(self, update_rule: UpdateRule) -> None:
        """Set growth and backoff factor and the growth interval."""
        self._side("setters").set_rule(update_rule)

    @rule(lane=_LANES, to_none=st.booleans())
    def zero_grad(self, lane: int, *, to_none: bool) -> None:
        """Set one optimizer's gradients to None or to zero."""
        self._side("zero_grad").zero_grad(self._lane(lane), to_none=to_none)

    @rule(fresh=st.booleans())
    def save_and_load(self, *, fresh: bool) -> None:
        """Load the scaler's state dict, into itself or into a fresh scaler."""
        self._side("load_state_dict").save_and_load(fresh=fresh)

    @rule()
    def load_nothing(self) -> None:
        """Load an empty state dict."""
        self._side("load nothing").load_nothing()

    @rule()
    def pickle(self) -> None:
        """Pickle the scaler, and continue with the unpickled one."""
        self._side("pickle").pickle()

    @invariant()
    def agree(self) -> None:
        """Compare both sides after each call. Raises AssertionError where they differ."""
        if self.both is not None:
            self.both.compare()


def run_programs(device: Device, precision: Precision, *, programs: int, seed: int = 0) -> collections.Counter[str]:
    """Run ``programs`` programs of up to 60 rules; return the number of each call.

    Raises AssertionError for a program whose two sides disagree, shrunk to the shortest one found.
    """
    counted: collections.Counter[str] = collections.Counter()

    def program() -> Programs:
        return Programs(device, precision, counted)

    settings = hypothesis.settings(
        max_examples=programs,
        stateful_step_count=60,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )
    factory: Any = hypothesis.seed(seed)(program)
    run_state_machine_as_test(factory, settings=settings)
    return counted
