"""Selection of an operator's sample arguments.

torch has up to a thousand samples of one operator, most of which differ in sizes only. Output dtypes depend on the
kinds of arguments: one sample of each kind is selected, then samples that differ in integers.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch

from pytest_amp.torch_private.testing import ModuleEntry, ModuleSample, OperatorEntry, Sample

#: The number of samples that are considered, and the number of selected samples.
LOOKED_AT, CALLED = 100, 24
#: The number of selected samples of a module, for each of training and evaluation mode.
MODULES_CALLED = 6
#: The dtypes of samples: the first one that the operator supports is used.
DTYPES = (torch.float32, torch.int64, torch.complex64, torch.bool)

_Sample = TypeVar("_Sample", Sample, ModuleSample)


def dtype_of(entry: OperatorEntry) -> torch.dtype | None:
    """Return the dtype of an operator's samples; None if it supports none of DTYPES on a CPU."""
    return next((dtype for dtype in DTYPES if dtype in entry.dtypes), None)


def samples_of(entry: OperatorEntry, dtype: torch.dtype) -> list[Sample]:
    """Return the selected samples of an operator, in torch's order. Raises whatever torch's sample function raises."""
    seed()
    return chosen(list(itertools.islice(entry.samples(dtype), LOOKED_AT)), CALLED)


def seed() -> None:
    """Seed the generators, so that samples and results are the same in every run."""
    torch.default_generator.manual_seed(0)
    random.seed(0)


def module_samples_of(entry: ModuleEntry, *, training: bool) -> list[ModuleSample]:
    """Return the selected samples of a module, in torch's order. Raises whatever torch's sample function raises."""
    seed()
    return chosen(entry.samples(training), MODULES_CALLED)


def chosen(samples: Sequence[_Sample], limit: int) -> list[_Sample]:
    """Select at most ``limit`` samples: one of each kind of arguments, then one of each that differs in integers."""
    selected: dict[int, _Sample] = {}
    for with_integers in (False, True):
        observed = set()
        for index, sample in enumerate(samples):
            kind = _kind(_arguments(sample), with_integers=with_integers)
            if kind not in observed and len(selected) < limit:
                selected[index] = sample
            observed.add(kind)
    return [selected[index] for index in sorted(selected)]


def _arguments(sample: Sample | ModuleSample) -> Any:
    if isinstance(sample, ModuleSample):
        return [_arguments(sample.constructor), _arguments(sample.forward)]
    return (sample.args, sample.kwargs)


def _kind(value: Any, *, with_integers: bool) -> Any:
    """Return what may affect a dtype: a tensor's properties except its sizes; the value of a bool, dtype or text."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, value.layout, value.dim(), value.numel() == 0, _orientation(value.shape))
    if isinstance(value, (list, tuple)):
        return _kinds(value, with_integers=with_integers)
    if isinstance(value, dict):
        return (tuple(sorted(map(str, value))), _kinds(value.values(), with_integers=with_integers))
    if isinstance(value, int) and not isinstance(value, bool):
        return ("integer", value if with_integers else None)
    if value is None or isinstance(value, (bool, str, torch.dtype, torch.layout, torch.memory_format)):
        return (type(value).__name__, str(value))
    return type(value).__name__


def _kinds(values: Iterable[Any], *, with_integers: bool) -> tuple[Any, ...]:
    return tuple(_kind(value, with_integers=with_integers) for value in values)


def _orientation(shape: Sequence[int]) -> int:
    """Return 1 for a wide, 0 for a square, -1 for a tall matrix: decompositions transpose tall matrices."""
    return 0 if len(shape) < 2 else (shape[-1] > shape[-2]) - (shape[-1] < shape[-2])
