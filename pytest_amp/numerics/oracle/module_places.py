"""Place of an operator call in a model: the module, the enclosing operator with a rule, and the direction."""

from __future__ import annotations

import bisect
import contextlib
import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.rules.spec import Rule


class Direction(enum.Enum):
    """Forward or backward pass."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True)
class Place:
    """Place of a call: a module's path (``""`` is the model or the loss), and the operator with a rule, if any."""

    module: str
    direction: Direction
    operator: str | None


@dataclass
class Places:
    """Tracker of the place of every operator call in a model's forward and backward pass.

    A backward call is attributed to the module whose forward pass created its autograd node; nodes have sequence
    numbers in the order of their creation.
    """

    model: torch.nn.Module
    modules: list[str] = field(default_factory=lambda: [""])
    operators: list[str | None] = field(default_factory=lambda: [None])
    numbers: list[int] = field(default_factory=list)
    entries: list[tuple[str, str | None]] = field(default_factory=list)
    _parameters: dict[int, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def followed(self, rules: dict[str, Rule]) -> Iterator[None]:
        """Track the place of calls inside the block by hooks of the model and of the operators that have ``rules``."""
        handles: list[Any] = []
        for name, module in self.model.named_modules():
            handles.append(module.register_forward_pre_hook(self._entering(name)))
            handles.append(module.register_forward_hook(self._leaving, always_call=True))
        overloads = {name: torch_private.find_overload(name) for name in rules if torch_private.has_overload(name)}
        names = {id(p): name for name, p in self.model.named_parameters()}
        self._parameters = names
        try:
            with torch_private.intercepted_calls(overloads, self._intercepted):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def here(self) -> Place:
        """Return the place of the current call."""
        node = torch_private.current_node()
        if node is None or len(self.modules) > 1:
            return Place(self.modules[-1], Direction.FORWARD, self.operators[-1])
        variable = getattr(node, "variable", None)
        if variable is not None:
            name = self._parameters.get(id(variable), "")
            return Place(name.rpartition(".")[0], Direction.BACKWARD, None)
        index = bisect.bisect_right(self.numbers, torch_private.number_of(node)) - 1
        module, operator = self.entries[index] if index >= 0 else ("", None)
        return Place(module, Direction.BACKWARD, operator)

    def _mark(self) -> None:
        self.numbers.append(torch_private.sequence_number())
        self.entries.append((self.modules[-1], self.operators[-1]))

    def _entering(self, name: str) -> Callable[..., None]:
        def hook(_module: torch.nn.Module, _inputs: object) -> None:
            self.modules.append(name)
            self._mark()

        return hook

    def _leaving(self, _module: torch.nn.Module, _inputs: object, _output: object) -> None:
        self.modules.pop()
        self._mark()

    def _intercepted(self, call: torch_private.Interception) -> object:
        """Mark the outermost operator with a rule, which also applies to the operators that it calls."""
        if self.operators[-1] is not None:
            return call.proceed()
        self.operators.append(call.overload.name())
        self._mark()
        try:
            return call.proceed()
        finally:
            self.operators.pop()
            self._mark()
