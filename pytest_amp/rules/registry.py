"""Operator overloads with an autocast kernel on a device type, read from the running dispatcher."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from pytest_amp import torch_private
from pytest_amp.rules.spec import Coverage, Rule, coverage, ever_ruled, expected

#: Namespaces of torch itself. Overloads of other libraries are listed, but not checked.
TORCH_NAMESPACES = frozenset(
    {"aten", "prims", "prim", "quantized", "mkldnn", "mkldnn_prepacked", "onednn", "inductor", "profiler"}
)


@dataclass(frozen=True)
class Registry:
    """The overloads with an autocast kernel on ``device_type``, and the rules that the spec expects.

    ``registered`` are the overloads of every namespace. ``expected`` are the spec's rules for this torch, without rules
    of operators that only other builds have.
    """

    device_type: str
    coverage: Coverage
    registered: tuple[str, ...]
    expected: dict[str, Rule]

    @property
    def new(self) -> tuple[str, ...]:
        """Registered overloads of torch's own namespaces that are not in the spec."""
        return tuple(name for name in self.registered if name not in self.expected and _is_torchs(name))

    @property
    def foreign(self) -> tuple[str, ...]:
        """Registered overloads of other libraries."""
        return tuple(name for name in self.registered if not _is_torchs(name))

    @property
    def gone(self) -> tuple[str, ...]:
        """Overloads in the spec without a kernel."""
        return tuple(sorted(set(self.expected) - set(self.registered)))


def without_rule(registry: Registry) -> tuple[str, ...]:
    """Return the overloads of this torch without an autocast kernel that another release has.

    Recorded in a baseline, they show that an operator has gained or lost a rule since.
    """
    rules = expected(registry.device_type, torch.__version__)
    names = [name for name in ever_ruled(registry.device_type) if name not in rules and name not in registry.registered]
    return tuple(name for name in names if torch_private.has_overload(name))


def _registrations(device_type: str) -> list[str]:
    try:
        return torch_private.autocast_registrations(device_type)
    except LookupError:
        return []


def _is_torchs(name: str) -> bool:
    return name.partition("::")[0] in TORCH_NAMESPACES


def short(overload: str) -> str:
    """Shorten ``aten::softmax.int`` to ``softmax.int``; overloads of other namespaces keep their full name."""
    return overload.removeprefix("aten::")


def qualified(name: str) -> str:
    """Expand ``softmax.int`` to ``aten::softmax.int``."""
    return name if "::" in name else f"aten::{name}"


def read_registry(device_type: str, *, registered: Iterable[str] | None = None) -> Registry:
    """Read the registry of ``device_type`` in this process; ``registered`` replaces the dispatcher's answer.

    A device type without autocast has no operators. Raises ValueError for a torch older
    than the spec, and PrivateApiGone if the dispatcher cannot be read.
    """
    names = tuple(_registrations(device_type) if registered is None else sorted(registered))
    rules = expected(device_type, torch.__version__)
    present = {name: rule for name, rule in rules.items() if rule.may_be_absent is None or name in names}
    return Registry(device_type, coverage(device_type, torch.__version__), names, present)
