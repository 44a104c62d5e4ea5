"""Which operator overloads have an autocast kernel on a device type, as the running dispatcher says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from pytest_amp import torch_private
from pytest_amp.rules.spec import Coverage, Rule, coverage, ever_ruled, expected

#: Namespaces of torch itself. What other libraries register is listed, and judged by nobody.
TORCH_NAMESPACES = frozenset(
    {"aten", "prims", "prim", "quantized", "mkldnn", "mkldnn_prepacked", "onednn", "inductor", "profiler"}
)


@dataclass(frozen=True)
class Registry:
    """The overloads with an autocast kernel on ``device_type``, and what the spec expects there.

    ``registered`` are all of them, of every namespace. ``expected`` are the spec's rules for this
    torch, without those that other builds alone have.
    """

    device_type: str
    coverage: Coverage
    registered: tuple[str, ...]
    expected: dict[str, Rule]

    @property
    def new(self) -> tuple[str, ...]:
        """Registered overloads of torch's own namespaces that the spec does not know."""
        return tuple(name for name in self.registered if name not in self.expected and _is_torchs(name))

    @property
    def foreign(self) -> tuple[str, ...]:
        """Registered overloads of other libraries."""
        return tuple(name for name in self.registered if not _is_torchs(name))

    @property
    def gone(self) -> tuple[str, ...]:
        """Overloads that the spec expects and that have no kernel."""
        return tuple(sorted(set(self.expected) - set(self.registered)))


def without_rule(registry: Registry) -> tuple[str, ...]:
    """Overloads of this torch that it has no autocast kernel for, and another release has.

    What a baseline has of them says that an operator got a rule since, or lost it.
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
    """``softmax.int`` for ``aten::softmax.int``; overloads of other namespaces keep their full name."""
    return overload.removeprefix("aten::")


def qualified(name: str) -> str:
    """``aten::softmax.int`` for ``softmax.int``."""
    return name if "::" in name else f"aten::{name}"


def read_registry(device_type: str, *, registered: Iterable[str] | None = None) -> Registry:
    """The registry of ``device_type`` in this process; ``registered`` stands in for the dispatcher's answer.

    A device type that torch has no autocast for has no operators. Raises ValueError for a torch older
    than the spec, and PrivateApiGone if the dispatcher cannot be read.
    """
    names = tuple(_registrations(device_type) if registered is None else sorted(registered))
    rules = expected(device_type, torch.__version__)
    present = {name: rule for name, rule in rules.items() if rule.may_be_absent is None or name in names}
    return Registry(device_type, coverage(device_type, torch.__version__), names, present)
