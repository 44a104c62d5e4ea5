"""Random programs of regions, settings and products, which compare torch's state with the model's after each step.

They need hypothesis (the extra ``suites``).
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from pytest_amp.failure import AmpFailure
from pytest_amp.precision import dtype_name
from pytest_amp.run.state_guard import nesting_depth
from pytest_amp.semantics.model import Facts, Mode, Model, Region, Use, Weight
from pytest_amp.torch_private import recorded_calls

_SHAPE = (5, 7)
#: Under inference mode a cast reaches the back end as ``aten::to``, undivided.
_CASTS = ("aten::_to_copy", "aten::to.dtype")
_MODES: dict[Mode, Callable[[], AbstractContextManager[object]]] = {
    Mode.GRAD: torch.enable_grad,
    Mode.NO_GRAD: torch.no_grad,
    Mode.INFERENCE: torch.inference_mode,
}
EXCEPTIONS = (KeyError, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration)


@dataclass
class _Pair:
    """A region in torch, and the same region in the model."""

    real: Any
    model: Region


@dataclass(frozen=True)
class Plan:
    """Devices of programs: the device that computes, the other types whose state is compared, and the facts."""

    device: str
    others: tuple[str, ...]
    facts: Facts
    seen: dict[str, int] = field(default_factory=dict)

    @property
    def types(self) -> tuple[str, ...]:
        """Every device type."""
        return (self.device, *self.others)


def plan_for(device: str, others: tuple[str, ...], *, history_kept: bool) -> Plan:
    """Return a plan for this torch. Raises RuntimeError for a device type that torch does not know."""
    types = (device, *others)
    available = {kind for kind in types if kind != "cuda" or torch.cuda.is_available()}
    defaults = {kind: dtype_name(torch.get_autocast_dtype(kind)) for kind in types}
    facts = Facts(defaults, frozenset(available), history_kept, any_dtype=frozenset({"cuda"}))
    return Plan(device, others, facts)


def run(plan: Plan, *, programs: int, steps: int, number: int) -> None:
    """Run ``programs`` random programs of up to ``steps`` steps, drawn with the seed ``number``.

    hypothesis enables a random subset of the steps in each program. Raises AmpFailure, with the shortest program that
    hypothesis finds, where torch differs from the model.
    """
    machine = seed(number)(type("Program", (_Machine,), {"plan": plan}))
    chosen = settings(
        max_examples=programs,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=chosen)


_devices = st.integers(0, 7)  # modulo the number of types; hypothesis shrinks to 0, the device that computes
_regions = st.builds(
    lambda device, dtype, enabled, cache: (device, dtype, enabled, cache),
    _devices,
    st.sampled_from((torch.bfloat16, torch.float16, None, torch.float32)),
    st.sampled_from((True, True, False)),
    st.sampled_from((None, True, False)),
)


#: Products directly after a step: they reveal what an entry or an exit did to the cache.
_products = st.lists(st.tuples(st.sampled_from(Weight), st.sampled_from(Mode)), max_size=2)


class _Machine(RuleBasedStateMachine):
    """State machine of one program."""

    plan: Plan

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(self.plan.facts)
        self.made: list[_Pair] = []
        self.inside: list[_Pair] = []
        self.log: list[str] = []
        device = self.plan.device
        weights = {kind: torch.nn.Parameter(torch.randn(_SHAPE, device=device)) for kind in Weight}
        weights[Weight.FROZEN].requires_grad_(False)  # noqa: FBT003  # torch's own signature
        base = torch.nn.Parameter(torch.randn(_SHAPE[::-1], device=device))
        self.weights: dict[Weight, torch.Tensor] = {**weights, Weight.VIEW: base.t()}
        self.values = {kind: [tensor.detach().clone()] for kind, tensor in self.weights.items()}
        self.row = torch.randn(2, _SHAPE[0], device=device)

    def _does(self, step: str, *of: object) -> None:
        self.plan.seen[step] = self.plan.seen.get(step, 0) + 1
        self.log.append(" ".join((step, *(dtype_name(x) if isinstance(x, torch.dtype) else str(x) for x in of))))

    def _make(self, drawn: tuple[int, torch.dtype | None, bool, bool | None]) -> _Pair:
        index, dtype, enabled, cache = drawn
        device = self.plan.types[index % len(self.plan.types)]
        if dtype is torch.float32 and device != self.plan.device:
            dtype = None  # which types refuse it differs between releases
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # regions that disable themselves warn
            real = torch.autocast(device, dtype, enabled=enabled, cache_enabled=cache)
        dtype_of_region = None if dtype is None else dtype_name(dtype)
        return _Pair(real, self.model.construct(device, dtype=dtype_of_region, enabled=enabled, cache=cache))

    def _enter(self, pair: _Pair) -> None:
        pair.real.__enter__()
        self.model.enter(pair.model)
        self.inside.append(pair)

    def _leave(self, pair: _Pair, kind: type[BaseException] | None) -> None:
        raised = None if kind is None else kind()
        swallowed = pair.real.__exit__(kind, raised, None)
        self.model.leave(pair.model)
        if swallowed:
            raise AmpFailure(f"a region swallowed {kind}")

    @rule(drawn=_regions, then=_products)
    def enter_a_new_region(self, drawn: Any, then: list[tuple[Weight, Mode]]) -> None:
        """Enter a new region, nested in the current ones."""
        self._does("enter", *drawn)
        self.made.append(self._make(drawn))
        self._enter(self.made[-1])
        self._use_all(then)

    @rule(drawn=_regions)
    def make_a_region(self, drawn: Any) -> None:
        """Construct a region, to be entered later with its arguments of now."""
        self._does("make", *drawn)
        self.made.append(self._make(drawn))

    @precondition(lambda self: self.made)
    @rule(which=st.integers(0, 99), then=_products)
    def enter_a_region_again(self, which: int, then: list[tuple[Weight, Mode]]) -> None:
        """Enter an existing region, whether left, never entered or still entered."""
        pair = self.made[which % len(self.made)]
        self._does("re-enter" if any(pair is other for other in self.inside) else "enter again", which)
        self._enter(pair)
        self._use_all(then)

    @precondition(lambda self: self.inside)
    @rule(then=_products)
    def leave_the_innermost(self, then: list[tuple[Weight, Mode]]) -> None:
        """Leave the innermost region at the end of its block."""
        self._does("leave")
        self._leave(self.inside.pop(), None)
        self._use_all(then)

    @precondition(lambda self: self.inside)
    @rule(kind=st.sampled_from(EXCEPTIONS))
    def leave_by_an_exception(self, kind: type[BaseException]) -> None:
        """Leave the innermost region by any exception: ``torch.autocast.__exit__`` does not read it."""
        self._does("raise", kind.__name__)
        self._leave(self.inside.pop(), kind)

    @precondition(lambda self: len(self.inside) > 1)
    @rule(which=st.integers(0, 99))
    def leave_another(self, which: int) -> None:
        """Leave a region that need not be the innermost, as generators and tasks do."""
        self._does("leave another", which)
        self._leave(self.inside.pop(which % len(self.inside)), None)

    @rule(drawn=st.lists(_regions, min_size=1, max_size=3), kind=st.sampled_from(EXCEPTIONS))
    def raise_through(self, drawn: list[Any], kind: type[BaseException]) -> None:
        """Raise an exception inside nested ``with`` statements, which leaves each of them."""
        self._does("raise through", drawn, kind.__name__)
        try:
            with ExitStack() as stack:
                entered = []
                for drawn_region in drawn:
                    pair = self._make(drawn_region)
                    stack.enter_context(pair.real)
                    self.model.enter(pair.model)
                    entered.append(pair.model)
                self.compare()
                raise kind  # noqa: TRY301  # from inside the regions
        except kind:
            for region in reversed(entered):
                self.model.leave(region)

    @rule(drawn=_regions, calls=st.integers(1, 3), then=_products)
    def call_a_decorated_function(self, drawn: Any, calls: int, then: list[tuple[Weight, Mode]]) -> None:
        """Call a decorated recursive function, which enters its region object ``calls`` times."""
        self._does("decorated" if calls == 1 else "recursion", *drawn, calls)
        pair = self._make(drawn)

        @pair.real  # type: ignore[untyped-decorator,unused-ignore]
        def function(left: int) -> None:
            self.model.enter(pair.model)
            self.compare()
            self._use_all(then)
            if left > 1:
                function(left - 1)
            self.model.leave(pair.model)

        function(calls)
        self.made.append(pair)

    @rule(drawn=_regions, rounds=st.integers(1, 3), then=_products)
    def pass_through_a_region(self, drawn: Any, rounds: int, then: list[tuple[Weight, Mode]]) -> None:
        """Enter one region object repeatedly, as a training loop does, with products before, inside and after it."""
        self._does("loop", *drawn, rounds)
        pair = self._make(drawn)
        for _ in range(rounds):
            self._use_all(then)
            with pair.real:
                self.model.enter(pair.model)
                self._use_all(then)
            self.model.leave(pair.model)
        self._use_all(then)

    @rule(device=_devices, dtype=st.sampled_from((torch.bfloat16, torch.float16)))
    def set_dtype(self, device: int, dtype: torch.dtype) -> None:
        """Call ``torch.set_autocast_dtype``."""
        kind = self.plan.types[device % len(self.plan.types)]
        self._does("set dtype", kind, dtype)
        torch.set_autocast_dtype(kind, dtype)
        self.model.dtypes[kind] = dtype_name(dtype)

    @rule(device=_devices, enabled=st.booleans())
    def set_enabled(self, device: int, *, enabled: bool) -> None:
        """Call ``torch.set_autocast_enabled``, which does not check the dtype."""
        kind = self.plan.types[device % len(self.plan.types)]
        if self.model.dtypes[kind] not in self.plan.facts.low:
            return  # a float32 "autocast dtype" casts nothing, and no region creates this state
        self._does("set enabled", kind, enabled)
        torch.set_autocast_enabled(kind, enabled)
        self.model.enabled[kind] = enabled

    @rule(enabled=st.booleans())
    def set_cache(self, *, enabled: bool) -> None:
        """Call ``torch.set_autocast_cache_enabled``, which does not clear the cache."""
        self._does("set cache", enabled)
        torch.set_autocast_cache_enabled(enabled)
        self.model.cache = enabled

    @rule()
    def clear(self) -> None:
        """Call ``torch.clear_autocast_cache``."""
        self._does("clear")
        torch.clear_autocast_cache()
        self.model.clear()

    @rule(weight=st.sampled_from(Weight))
    def change(self, weight: Weight) -> None:
        """Update a weight in place, as an optimizer does."""
        self._does("change", weight.value)
        with torch.no_grad():
            self.weights[weight].add_(1)
        self.values[weight].append(self.weights[weight].detach().clone())
        self.model.change(weight)

    def _use_all(self, products: list[tuple[Weight, Mode]]) -> None:
        for weight, mode in products:
            self.use_a_weight(weight, mode)

    @rule(weight=st.sampled_from(Weight), mode=st.sampled_from(Mode))
    def use_a_weight(self, weight: Weight, mode: Mode) -> None:
        """Compute a product, and compare its dtype, bits, history and number of casts."""
        device = self.plan.device
        if self.model.clashes(device, weight):
            return  # test_cast_cache has the expected failure
        self._does(f"use {weight.value}", "under", mode.value)
        self.plan.seen[f"use under {mode.value}"] = 1
        expected = self.model.use(device, weight, mode)
        with _MODES[mode](), recorded_calls() as calls:
            result = torch.mm(self.row, self.weights[weight])
        casts = sum(c.operator in _CASTS and c.tensors[:1] == (f"float32{list(_SHAPE)}",) for c in calls)
        version = expected.version if self._equals(result, weight, expected) else -1
        use = Use(dtype_name(result.dtype), casts, version, result.requires_grad)
        self._expect(f"a product with {weight.value} under {mode.value}", use, expected)

    def _equals(self, result: torch.Tensor, weight: Weight, use: Use) -> bool:
        dtype: torch.dtype = getattr(torch, use.dtype)
        with torch.no_grad():  # inside the current region: arguments in its dtype are not cast
            expected = torch.mm(self.row.to(dtype), self.values[weight][use.version].to(dtype))
        # Weights with other strides use another kernel: results are equal up to the order of sums.
        tolerance = {"float32": 1e-6, "float16": 2.0**-10, "bfloat16": 2.0**-7}[use.dtype]
        return torch.allclose(result.detach(), expected, rtol=tolerance, atol=tolerance)

    @rule(drawn=_regions)
    def look_from_another_thread(self, drawn: Any) -> None:
        """Compare another thread's state, before and after a region there, with the state of a new thread."""
        self._does("thread", *drawn)
        fresh = Model(self.plan.facts)
        states: list[dict[str, object]] = []
        index, dtype, enabled, _ = drawn

        def look() -> None:
            states.append(self._state())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kind = self.plan.types[index % len(self.plan.types)]
                low = None if dtype is torch.float32 else dtype
                with torch.autocast(kind, low, enabled=enabled, cache_enabled=False):
                    pass
            states.append(self._state())

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        # The cache belongs to the process, and the region that ends there is the outermost one of its thread.
        self.model.clear()
        self._expect("the state of another thread", states, [fresh.state()] * 2)

    def _state(self) -> dict[str, object]:
        state: dict[str, object] = {
            f"is_autocast_enabled({kind})": torch.is_autocast_enabled(kind) for kind in self.plan.types
        }
        state.update({f"get_autocast_dtype({k})": dtype_name(torch.get_autocast_dtype(k)) for k in self.plan.types})
        cache, depth = torch.is_autocast_cache_enabled(), nesting_depth()
        return {**state, "is_autocast_cache_enabled()": cache, "nesting depth": depth}

    @invariant()
    def compare(self) -> None:
        """Compare torch's state with the model's."""
        self._expect("autocast's state", self._state(), self.model.state())

    def _expect(self, what: str, actual: object, expected: object) -> None:
        if actual != expected:
            raise AmpFailure(
                f"{what} in a random program differs from the model",
                label_before="model",
                before=str(expected),
                now=f"{actual} on torch {torch.__version__}",
                likely=f"a transition of torch/amp/autocast_mode.py or aten/src/ATen/autocast_mode.cpp changed; the "
                f"program: {'; '.join(self.log)}",
            )

    def teardown(self) -> None:
        """Restore the state from before the program, even after a failure."""
        move = torch.autocast_decrement_nesting if nesting_depth() > 0 else torch.autocast_increment_nesting
        for _ in range(abs(nesting_depth())):
            move()
        torch.clear_autocast_cache()
        for kind in self.plan.types:
            torch.set_autocast_enabled(kind, False)  # noqa: FBT003  # torch's own signature
            torch.set_autocast_dtype(kind, getattr(torch, self.plan.facts.defaults[kind]))
        torch.set_autocast_cache_enabled(True)


#: The names of all steps that a program can take, as counted in ``Plan.seen``.
STEPS = functools.reduce(
    frozenset.union,
    (
        frozenset({"enter", "make", "re-enter", "enter again", "leave", "raise", "leave another", "raise through"}),
        frozenset(
            {"decorated", "recursion", "loop", "set dtype", "set enabled", "set cache", "clear", "change", "thread"}
        ),
        frozenset(f"use {weight.value}" for weight in Weight),
        frozenset(f"use under {mode.value}" for mode in Mode),
    ),
)
