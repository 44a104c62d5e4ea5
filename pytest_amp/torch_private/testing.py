"""Sample arguments and supported dtypes of operators and modules, from torch's own tests.

Importing torch's test code changes the process: it forbids writes to ``torch.backends`` flags, among others.
Therefore only child processes import it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import sys
import types
import unittest
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_amp.torch_private.gone import PrivateApiGone

if TYPE_CHECKING:
    import torch

_OPERATORS = "torch.testing._internal.common_methods_invocations"
_MODULES = "torch.testing._internal.common_modules"


@dataclass(frozen=True)
class Sample:
    """Arguments of one call, on the CPU."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class OperatorEntry:
    """One entry of ``op_db``: its name (``linalg.pinv.singular``), function, and dtypes and samples on a CPU.

    ``samples(dtype)`` yields sample arguments; it may raise any exception.
    """

    name: str
    function: Callable[..., Any]
    dtypes: frozenset[torch.dtype]
    samples: Callable[[torch.dtype], Iterator[Sample]]


@dataclass(frozen=True)
class ModuleSample:
    """Arguments of a module's constructor and of its forward, on the CPU."""

    constructor: Sample
    forward: Sample


@dataclass(frozen=True)
class ModuleEntry:
    """One entry of ``module_db``: its name (``nn.Linear``), class, and the arguments of torch's tests.

    ``samples(training)`` may raise any exception.
    """

    name: str
    module: Callable[..., torch.nn.Module]
    samples: Callable[[bool], list[ModuleSample]]


@functools.cache
def operator_entries() -> Mapping[str, OperatorEntry]:
    """Return the entries of ``op_db`` by name; the variant's name, if any, follows the operator's.

    Raises PrivateApiGone if the list, or a library that it needs, cannot be imported, or if the attributes of its
    entries have changed.
    """
    entries: dict[str, OperatorEntry] = {}
    for info in _list(_OPERATORS, "op_db"):
        with _expected(_OPERATORS, "op_db"):
            name = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else str(info.name)
            dtypes = frozenset(info.supported_dtypes("cpu"))
            entry = OperatorEntry(name, info.op, dtypes, _sampler(info))
        entries[_unused(name, entries)] = entry
    return entries


@functools.cache
def module_entries() -> Mapping[str, ModuleEntry]:
    """Return the entries of ``module_db`` by name. Raises PrivateApiGone as ``operator_entries`` does."""
    entries: dict[str, ModuleEntry] = {}
    for info in _list(_MODULES, "module_db"):
        with _expected(_MODULES, "module_db"):
            entry = ModuleEntry(str(info.name), info.module_cls, _module_sampler(info))
        entries[_unused(entry.name, entries)] = entry
    return entries


def _list(module: str, name: str) -> list[Any]:
    try:
        with expecttest_or_stand_in():
            entries = getattr(importlib.import_module(module), name)
    except Exception as error:  # an import of test code may raise anything
        raise PrivateApiGone(f"usable {module}.{name} ({type(error).__name__}: {error})") from error
    if not entries:
        raise PrivateApiGone(f"entries in {module}.{name}")
    return list(entries)


@contextlib.contextmanager
def expecttest_or_stand_in() -> Iterator[None]:
    """Provide ``expecttest``, which torch's own test classes inherit from, or a stand-in with an empty class.

    The lists are data in the modules of those classes and do not depend on it: no test of torch's is run here.
    """
    try:
        importlib.import_module("expecttest")
    except ImportError:
        stand_in = types.ModuleType("expecttest")
        stand_in.__dict__.update(TestCase=unittest.TestCase, ACCEPT=False)
        before = sys.modules.get("expecttest")
        sys.modules["expecttest"] = stand_in
        try:
            yield
        finally:
            if before is None:
                del sys.modules["expecttest"]
            else:
                sys.modules["expecttest"] = before
    else:
        yield


class _expected:  # noqa: N801  # a context, read like a function
    """Context that turns the exceptions of a changed entry into PrivateApiGone."""

    def __init__(self, module: str, name: str) -> None:
        self._what = f"{module}.{name} as it was"

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            raise PrivateApiGone(f"{self._what} ({type(error).__name__}: {error})") from error


def _unused(name: str, used: Mapping[str, object]) -> str:
    if name not in used:
        return name
    return next(f"{name}.{number}" for number in itertools.count(2) if f"{name}.{number}" not in used)


def _sampler(info: Any) -> Callable[[torch.dtype], Iterator[Sample]]:
    _ = info.sample_inputs

    def samples(dtype: torch.dtype) -> Iterator[Sample]:
        for sample in info.sample_inputs("cpu", dtype, requires_grad=False):
            yield Sample((sample.input, *sample.args), dict(sample.kwargs))

    return samples


def _module_sampler(info: Any) -> Callable[[bool], list[ModuleSample]]:
    _ = info.module_inputs_func

    def samples(training: bool) -> list[ModuleSample]:  # noqa: FBT001  # as torch has it
        import torch

        inputs = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=training
        )
        pairs = [
            (module_input.constructor_input, module_input.forward_input)
            for module_input in inputs
            if module_input.forward_input is not None
        ]
        return [ModuleSample(_sample(constructor), _sample(forward)) for constructor, forward in pairs]

    return samples


def _sample(sample: Any) -> Sample:
    return Sample(tuple(sample.args), dict(sample.kwargs))
