"""Site of an operator call: its module, its pass, and the line of user code."""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules import module as module_hooks

from pytest_amp import torch_private
from pytest_amp.numerics.callers import calling_line
from pytest_amp.numerics.oracle.module_places import Direction


@dataclass(frozen=True)
class Site:
    """Site of a call: its module, its pass, the operator whose backward pass it is part of, and the line."""

    module: torch.nn.Module | None
    direction: Direction
    node: str | None
    line: str | None
    #: Whether the line is in a backward pass of the user's own, not that of the forward call.
    is_own: bool = False


@contextlib.contextmanager
def followed_modules(running: list[torch.nn.Module]) -> Iterator[None]:
    """Maintain the stack ``running`` of the modules that are running inside the block, innermost last."""

    def enter(module: torch.nn.Module, _inputs: object) -> None:
        running.append(module)

    def leave(module: torch.nn.Module, _inputs: object, _output: object) -> None:
        while module in running and running.pop() is not module:
            pass

    with contextlib.ExitStack() as stack:
        stack.callback(module_hooks.register_module_forward_pre_hook(enter).remove)
        stack.callback(module_hooks.register_module_forward_hook(leave, always_call=True).remove)
        yield


@dataclass
class Sites:
    """Tracker of the running modules, including a training step's model, which is not known before it runs.

    A backward call is attributed to the forward call that created its autograd node; nodes have sequence numbers in the
    order of their creation.
    """

    _modules: list[torch.nn.Module] = field(default_factory=list)
    _numbers: list[int] = field(default_factory=list)
    _sites: list[Site] = field(default_factory=list)

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Track the running module inside the block."""
        with followed_modules(self._modules):
            yield

    def here(self) -> Site:
        """Return the site of the current call. Must be called for every call."""
        node = torch_private.current_node()
        module = self._modules[-1] if self._modules else None
        if node is None or module is not None:
            site = Site(module, Direction.FORWARD, None, calling_line())
            number = torch_private.sequence_number()
            if not self._numbers or number >= self._numbers[-1]:
                self._numbers.append(number)
                self._sites.append(site)
            return site
        line = calling_line(backward=True)
        # A node was created by the first call after which the next sequence number is larger.
        index = bisect.bisect_right(self._numbers, torch_private.number_of(node))
        if hasattr(node, "variable") or index == len(self._sites):
            return Site(None, Direction.BACKWARD, None, line, is_own=line is not None)
        forward = self._sites[index]
        return Site(forward.module, Direction.BACKWARD, _forward_name(node), line or forward.line, line is not None)


def in_words(module: torch.nn.Module | None, names: Mapping[int, str]) -> str:
    """Return the name of a module in failures: its path, from ``names`` by identity, and its type."""
    if module is None:
        return "the loss"
    return f"{names.get(id(module)) or 'the model'} ({type(module).__name__})"


def _forward_name(node: Any) -> str:
    """Return the name of a node's operator, or of the user's function: ``Sqrt`` for ``SqrtBackward0``."""
    return str(node.name()).rstrip("0123456789").removesuffix("Backward")
