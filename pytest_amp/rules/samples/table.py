"""Table of all samples, by operator overload."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_amp.rules.samples.arguments import ARGUMENTS
from pytest_amp.rules.samples.elementwise import ELEMENTWISE
from pytest_amp.rules.samples.linalg import FOURIER, LINALG
from pytest_amp.rules.samples.losses import LOSSES
from pytest_amp.rules.samples.products import PRODUCTS
from pytest_amp.rules.samples.sample import Build, Sample, Values
from pytest_amp.rules.samples.spatial import SPATIAL

_TABLE: Mapping[str, Build] = MappingProxyType({**ELEMENTWISE, **FOURIER, **LINALG, **LOSSES, **PRODUCTS, **SPATIAL})


def samples(overload: str) -> list[Sample]:
    """Return the samples of a qualified overload; empty if it has none."""
    return _build(_TABLE, overload, overload)


def further_samples(overload: str) -> list[Sample]:
    """Return samples of a qualified overload with other non-tensor arguments; empty if it has no such arguments."""
    return _build(ARGUMENTS, overload, f"{overload}, further")


def has_samples(overload: str) -> bool:
    """Return whether a qualified overload has samples."""
    return overload.removeprefix("aten::") in _TABLE


def _build(table: Mapping[str, Build], overload: str, seed: str) -> list[Sample]:
    build = table.get(overload.removeprefix("aten::"))
    if build is None:
        return []
    result = build(Values(seed))
    return result if isinstance(result, list) else [result]
