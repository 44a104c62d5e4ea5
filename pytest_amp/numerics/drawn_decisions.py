"""Decisions that a step takes from random numbers alone: ``torch.rand(n) < p``, ``floor(keep + torch.rand(n))``.

A low dtype rounds the random numbers, the constants, and their sums. Close to its threshold a decision therefore
depends on the dtype: stochastic depth retains a branch in float16 that it drops in float32. The difference is chance,
as the random number is, and no error of the step. Steps that replay the random numbers replay these decisions, too.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from pytest_amp import torch_private

#: Operators with floating results that are discontinuous in their arguments, and comparisons that are done in place.
_DISCONTINUOUS = frozenset(
    {
        *("ceil", "floor", "floor_divide", "fmod", "frac", "heaviside", "remainder", "round", "sgn", "sign", "trunc"),
        *("eq", "ge", "gt", "le", "lt", "ne"),
    }
)
#: Operators that change no value except by rounding; a step in the tensor's own dtype does without the cast.
_COPIES = frozenset({"aten::_to_copy", "aten::alias", "aten::clone", "aten::detach"})
#: Operators whose results depend on nothing.
_UNINITIALISED = frozenset({"aten::empty_like", "aten::new_empty", "aten::new_empty_strided"})
#: Largest share of elements that rounding decides differently, and a number of them that is always allowed.
_SHARE, _FEW = 1 / 16, 2


@dataclass(frozen=True)
class _Derived:
    """Weak reference to a derived tensor, the digest of its computation, and the address of its storage."""

    reference: weakref.ref[torch.Tensor]
    digest: bytes
    storage: int | None


@dataclass
class DrawnDecisions:
    """Decisions of one step, by the digest of their computation.

    A tensor is *derived* if it is computed from drawn random numbers and Python's numbers alone; ``_derived`` contains
    those that are alive, by id. A decision of a derived tensor is recorded, and replayed if another step computes the
    same. Decisions that depend on a value of the model are not replayed, nor are decisions of one computation in two
    dtypes that differ, nor those that differ by more than rounding explains.
    """

    recorded: dict[bytes, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    _derived: dict[int, _Derived] = field(default_factory=dict)

    def follow_draw(self, draw: Hashable, tensors: Sequence[torch.Tensor]) -> None:
        """Follow the floating ``tensors``, the random numbers of a ``draw``."""
        digest = _digest(draw)
        for index, tensor in enumerate(tensors):
            if tensor.is_floating_point():
                self._follow(tensor, _digest(digest, index))

    def forget_written(self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Stop following the tensors that share memory with those that a call writes to."""
        targets = torch_private.written_tensors(overload, args, kwargs) if self._derived else []
        if not targets:
            return
        identities = {id(target) for target in targets}
        storages = {torch_private.storage_address(target) for target in targets} - {None}
        for identity in [*self._derived]:
            entry = self._derived.get(identity)
            if entry is not None and (identity in identities or entry.storage in storages):
                self._derived.pop(identity, None)

    def record(self, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Record the decisions in the result of a call, and follow it if it is derived."""
        if self._derived:
            self._handle(overload, args, kwargs, result, self._record_decisions)

    def replay(
        self,
        overload: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        values: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    ) -> None:
        """Write the recorded decisions to the result of a call; ``values`` returns the tensor that has its values."""
        if self._derived:
            self._handle(overload, args, kwargs, result, partial(self._write_decisions, overload.name(), values))

    def are_equal(self, other: DrawnDecisions) -> bool:
        """Return whether two steps took the same decisions."""
        return self.recorded.keys() == other.recorded.keys() and all(
            _are_equal(decisions, other.recorded[digest]) for digest, decisions in self.recorded.items()
        )

    def _record_decisions(self, digest: bytes, tensors: Sequence[torch.Tensor]) -> None:
        decisions = tuple(tensor.detach().clone() for tensor in tensors)
        previous = self.recorded.get(digest)
        self.recorded[digest] = decisions if previous is None or _are_equal(previous, decisions) else ()

    def _write_decisions(
        self,
        operator: str,
        values: Callable[[torch.Tensor], torch.Tensor],
        digest: bytes,
        tensors: Sequence[torch.Tensor],
    ) -> None:
        pairs = [*zip(map(values, tensors), self.recorded.get(digest, ()), strict=False)]
        if all(_may_be_rounding(operator, target, decision) for target, decision in pairs):
            for target, decision in pairs:
                target.copy_(decision)

    def _handle(
        self,
        overload: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        decide: Callable[[bytes, Sequence[torch.Tensor]], None],
    ) -> None:
        # Most calls have no derived argument: each operator of a step gets here.
        call = torch_private.Dispatched(overload, args, kwargs) if self._has_derived(args, kwargs) else None
        digest = None if call is None else self._digest_of(call)
        self.forget_written(overload, args, kwargs)
        if call is None or digest is None:
            return
        results = [leaf for leaf in torch_private.flat(result)[0] if _is_tensor(leaf)]
        # A view has its argument's decisions, and an expanded one cannot be written to.
        decisions = [tensor for tensor in results if _is_decision(call, tensor)]
        if decisions and not torch_private.aliasing_of(overload).views:
            with torch.no_grad():
                decide(digest, decisions)
        is_copy = overload.name() in _COPIES and results[0].is_floating_point()
        for index, tensor in enumerate(results):
            self._follow(tensor, digest if is_copy else _digest(digest, index))

    def _has_derived(self, args: Iterable[Any], kwargs: dict[str, Any]) -> bool:
        """Return whether an argument, or a tensor in a list, is derived; an operator has no deeper arguments."""
        derived = self._derived
        for value in (*args, *kwargs.values()) if kwargs else args:
            if id(value) in derived:
                return True
            if isinstance(value, (list, tuple)) and any(id(leaf) in derived for leaf in value):
                return True
        return False

    def _digest_of(self, call: torch_private.Dispatched) -> bytes | None:
        """Return the digest of the computation of a call; None unless all its tensors are derived."""
        leaves = call.flat[0]
        digests = [self._digest_if_derived(leaf) for leaf in leaves if _is_tensor(leaf)]
        if None in digests or not digests or call.overload.name() in _UNINITIALISED:
            return None
        options = [leaf for leaf in leaves if _is_option(leaf)]
        if call.overload.name() in _COPIES and not any(isinstance(option, torch.dtype) for option in options):
            return digests[0]
        return _digest(call.overload.name(), options, digests)

    def _follow(self, tensor: torch.Tensor, digest: bytes) -> None:
        identity, derived = id(tensor), self._derived
        reference = weakref.ref(tensor, lambda _tensor: derived.pop(identity, None))
        derived[identity] = _Derived(reference, digest, torch_private.storage_address(tensor))

    def _digest_if_derived(self, tensor: torch.Tensor) -> bytes | None:
        entry = self._derived.get(id(tensor))
        return entry.digest if entry is not None and entry.reference() is tensor else None


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def _is_option(leaf: Any) -> bool:
    """Return whether an argument distinguishes calls: not a floating dtype, which may differ between steps."""
    if isinstance(leaf, torch.dtype):
        return not leaf.is_floating_point
    return leaf is None or isinstance(leaf, (bool, int, float, complex, str))


def _digest(*parts: object) -> bytes:
    """Return a digest of constant size: tuples of all steps of a computation grow exponentially if it adds x to x."""
    return hashlib.sha256(repr(parts).encode()).digest()


def _is_decision(call: torch_private.Dispatched, tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_meta:
        return False
    if not tensor.dtype.is_floating_point:
        return not tensor.dtype.is_complex
    name = call.overload.name()
    if call.kwargs.get("rounding_mode") is not None:  # div
        return True
    return name.removeprefix("aten::").partition(".")[0].rstrip("_") in _DISCONTINUOUS


def _are_equal(decisions: Sequence[torch.Tensor], previous: Sequence[torch.Tensor]) -> bool:
    return len(decisions) == len(previous) and all(
        torch.equal(a.double(), b.double()) for a, b in zip(decisions, previous, strict=True)
    )


def _may_be_rounding(operator: str, actual: torch.Tensor, recorded: torch.Tensor) -> bool:
    """Return whether rounding may be the cause of the differences between decisions of one computation.

    Rounding changes few decisions, those close to a threshold; a wrong kernel changes many. Integers other than those
    of a cast are positions and counts, any number of which may change.
    """
    if actual.shape != recorded.shape:
        return False
    if operator != "aten::_to_copy" and not (recorded.is_floating_point() or recorded.dtype == torch.bool):
        return True
    left, right = actual.float(), recorded.float()
    differences = torch.where(left == right, 0.0, (left - right).abs() / left.abs().clamp(min=1))
    return bool(differences.sum() <= _FEW + _SHARE * left.numel())
