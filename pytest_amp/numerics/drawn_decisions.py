"""Decisions that a step takes from random numbers alone: ``torch.rand(n) < p``, ``floor(keep + torch.rand(n))``.

A low dtype rounds the numbers, the sums of numbers and constants, and the constants. So close to its threshold a
decision falls the other way in another dtype: stochastic depth keeps a branch in float16 that it drops in float32. That
is chance, as the random number is, and no error of the step. Steps that replay the numbers take these decisions, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_amp import torch_private

#: Operators with floating results that jump where their argument changes by a rounding; in place, comparisons as well.
_STEPS = frozenset({"ceil", "eq", "floor", "frac", "ge", "gt", "le", "lt", "ne", "round", "sgn", "sign", "trunc"})
#: Operators that change no value but by rounding; a step in the tensor's own dtype does without the cast.
_COPIES = frozenset({"aten::_to_copy", "aten::alias", "aten::clone", "aten::detach"})


@dataclass
class DrawnDecisions:
    """Decisions of one step, by what was computed from which draws.

    A tensor is *derived* if it is computed from drawn numbers and Python's numbers alone; ``_derived`` has the
    computation of each that is alive. A decision of a derived tensor is recorded with its computation, and replayed
    where another step computes the same. Decisions in which a value of the model takes part are left alone.
    """

    recorded: dict[Hashable, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    _derived: dict[int, tuple[weakref.ref[torch.Tensor], Hashable]] = field(default_factory=dict)

    def drawn(self, draw: Hashable, tensors: Sequence[torch.Tensor]) -> None:
        """Follow the floating ``tensors``, the numbers of a ``draw``."""
        for index, tensor in enumerate(tensors):
            if tensor.is_floating_point():
                self._follow(tensor, (draw, index))

    def record(self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Record the decisions in the result of a call, and follow it if it is derived."""
        if self._may_take(args, kwargs):
            self._seen(torch_private.Dispatched(overload, args, kwargs), result, self._keep)

    def replay(
        self,
        overload: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        values: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    ) -> None:
        """Write the recorded decisions to the result of a call; ``values`` returns the tensor that has its numbers."""

        def write(key: Hashable, tensors: Sequence[torch.Tensor]) -> None:
            for tensor, value in zip(tensors, self.recorded.get(key, ()), strict=False):
                if tensor.shape == value.shape:
                    values(tensor).copy_(value)

        if self._may_take(args, kwargs):
            self._seen(torch_private.Dispatched(overload, args, kwargs), result, write)

    def are_equal(self, other: DrawnDecisions) -> bool:
        """Return whether two steps took the same decisions."""
        return self.recorded.keys() == other.recorded.keys() and all(
            all(torch.equal(a.double(), b.double()) for a, b in zip(decided, other.recorded[key], strict=True))
            for key, decided in self.recorded.items()
        )

    def _may_take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether a derived tensor may be among the arguments; each operator of a step is asked for this."""
        derived = self._derived
        return bool(derived) and any(
            id(value) in derived or isinstance(value, (list, tuple)) for value in (*args, *kwargs.values())
        )

    def _seen(
        self,
        call: torch_private.Dispatched,
        result: Any,
        decide: Callable[[Hashable, Sequence[torch.Tensor]], None],
    ) -> None:
        leaves = call.flat[0]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        paths = [self._path(tensor) for tensor in tensors]
        results = [leaf for leaf in torch_private.flat(result)[0] if isinstance(leaf, torch.Tensor)]
        if None in paths or not paths:
            for tensor in results:  # what is not derived may be written to a derived tensor
                self._derived.pop(id(tensor), None)
            return
        if call.overload.name() in _COPIES and results[0].is_floating_point():
            self._follow(results[0], paths[0])
            return
        numbers = tuple(repr(leaf) for leaf in leaves if isinstance(leaf, (bool, int, float)))
        path = (call.overload.name(), numbers, *paths)
        decided = [tensor for tensor in results if _is_decision(call, tensor)]
        if decided:
            with torch.no_grad():
                decide(path, decided)
        for index, tensor in enumerate(results):
            self._follow(tensor, (path, index))

    def _keep(self, key: Hashable, tensors: Sequence[torch.Tensor]) -> None:
        self.recorded[key] = tuple(tensor.detach().clone() for tensor in tensors)

    def _follow(self, tensor: torch.Tensor, path: Hashable) -> None:
        identity, derived = id(tensor), self._derived
        derived[identity] = weakref.ref(tensor, lambda _tensor: derived.pop(identity, None)), path

    def _path(self, tensor: torch.Tensor) -> Hashable:
        reference, path = self._derived.get(id(tensor), (None, None))
        return path if reference is not None and reference() is tensor else None


def _is_decision(call: torch_private.Dispatched, tensor: torch.Tensor) -> bool:
    if not tensor.dtype.is_floating_point:
        return not tensor.dtype.is_complex
    return call.overload.name().removeprefix("aten::").partition(".")[0].rstrip("_") in _STEPS
