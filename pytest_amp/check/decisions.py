"""Decisions of a program, which a repeated run takes again, and roundings, which a repeated run changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch

from pytest_amp.lint.place import calling_place
from pytest_amp.torch_private import flat, writes_in_place
from pytest_amp.torch_private.trees import unflat
from pytest_amp.training.noise import uniform_noise

#: Functions with floating results that jump where their argument changes by a rounding.
_STEPS = frozenset({"ceil", "floor", "frac", "heaviside", "histc", "round", "sign", "sgn", "trunc", "fix"})
#: Beginnings of the names of functions that draw random numbers, which depend on the dtype.
_RANDOM = ("bernoulli", "dropout", "multinomial", "normal", "poisson", "rand", "uniform", "exponential_", "gumbel")
#: Functions whose names begin like those of random functions.
_DETERMINISTIC = frozenset({"normalize", "poisson_nll_loss"})
#: Casts, by which a single value is no decision: a count that is cast to an integer.
_CASTS = frozenset({"int", "long", "short", "to", "type", "type_as"})


class DivergedError(Exception):
    """A repeated run that takes other decisions, or takes them elsewhere."""


#: Maximum number of disturbed calls of a function in a line.
MOST = 64


@dataclass
class Decisions:
    """Record of a run's decisions in their order; with ``replays`` each later run takes them from the record."""

    replays: bool = False
    _record: list[tuple[str, list[Any]]] = field(default_factory=list)
    _next: int = 0

    def begin(self) -> None:
        """Start a run."""
        self._next = 0

    def decide(self, name: str, args: Any, kwargs: Any, result: Any) -> Any:
        """Return the result of a call, with the decisions of the first run in place of its own.

        Raises DivergedError if the first run called another function here.
        """
        leaves, layout = flat(result)
        places = [place for place, leaf in enumerate(leaves) if _is_decision(name, leaf)]
        if not places or not _has_floats((args, kwargs)) or writes_in_place(name, kwargs):
            return result
        if not self.replays:
            self._record.append((name, [_copied(leaves[place]) for place in places]))
            return result
        if self._next >= len(self._record) or self._record[self._next][0] != name:
            raise DivergedError(name)
        values = self._record[self._next][1]
        self._next += 1
        for place, value in zip(places, values, strict=False):
            if isinstance(value, torch.Tensor) and value.shape != leaves[place].shape:
                raise DivergedError(name)
            leaves[place] = _replayed(name, kwargs, leaves[place], value)
        return unflat(leaves, layout)


@dataclass
class Disturbance:
    """Independent errors of up to ``u`` in the results of a program's calls, as rounding makes them.

    The first calls of a line are disturbed, at most ``MOST``: the errors of a long sum then are those of its roundings,
    and not larger than its terms.
    """

    u: float
    generator: torch.Generator
    _calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    def disturb(self, name: str, args: Any, kwargs: Any, result: Any) -> Any:
        """Return the result of a call with an error, or unchanged if it has no new floating values."""
        if not _has_memory(result) or not result.is_floating_point() or not result.numel():
            return result
        line = calling_place().line
        self._calls[line, name] += 1
        if self._calls[line, name] > MOST:
            return result
        factor = (1 + self.u * uniform_noise(result.shape, self.generator)).to(result.device)
        if writes_in_place(name, kwargs):
            with torch.no_grad():
                return result.mul_(factor)
        tensors = [leaf for leaf in flat((args, kwargs))[0] if _has_memory(leaf)]
        is_view = any(_memory(tensor) == _memory(result) for tensor in tensors)
        return result if is_view else result * factor.to(result.dtype)


def _has_memory(leaf: object) -> TypeGuard[torch.Tensor]:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided


def _memory(tensor: torch.Tensor) -> object:
    """Return the address of a tensor's memory."""
    return tensor.untyped_storage().data_ptr()


def is_random(name: str) -> bool:
    """Return whether the function of this name draws random numbers."""
    return name.startswith(_RANDOM) and name not in _DETERMINISTIC


def _is_decision(name: str, leaf: Any) -> bool:
    if isinstance(leaf, bool):
        return True
    if not isinstance(leaf, torch.Tensor) or leaf.is_complex():
        return False
    return name in _STEPS if leaf.is_floating_point() else name not in _CASTS or leaf.numel() > 1


def _has_floats(tree: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) and leaf.is_floating_point() for leaf in flat(tree)[0])


def _replayed(name: str, kwargs: Any, result: Any, recorded: Any) -> Any:
    """Return the ``recorded`` decision in place of ``result``.

    A rounded number or a count that is more than one step away from the recorded one is no decision: it is returned
    as it is.
    """
    if name not in _STEPS | _CASTS or name == "histc" or not isinstance(recorded, torch.Tensor):
        return _copied(recorded)
    recorded = recorded.detach()
    distance = (result.detach().cpu().double() - recorded.cpu().double()).abs()
    is_near = (distance <= _step(name, kwargs) * 1.001).to(result.device)
    return torch.where(is_near, recorded.to(result.dtype), result)


def _step(name: str, kwargs: Any) -> float:
    """Return the distance of two neighbouring results of a function in _STEPS or _CASTS."""
    if name == "round":
        return float(10.0 ** -kwargs.get("decimals", 0))
    return 2.0 if name in {"sign", "sgn"} else 1.0


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
