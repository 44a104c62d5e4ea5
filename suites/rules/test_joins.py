"""Operators that join tensors, under any name: the result has the widest dtype, and every bit of all inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.devices import DeviceKind
from pytest_amp.failure import AmpFailure
from pytest_amp.precision import dtype_name
from pytest_amp.run.targets import Target

pytestmark = pytest.mark.amp(fake=True)

_Join = Callable[[Sequence[torch.Tensor]], torch.Tensor]


#: Some of its functions have no types.
_torch: Any = torch


def _named(name: str, **keywords: int) -> _Join:
    """Return a function that is looked up when it is called."""
    return lambda tensors: getattr(_torch, name)(tensors, **keywords)


def _widest(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a tensor of the widest dtype for all inputs."""
    dtype = max((tensor.dtype for tensor in tensors), key=lambda dtype: dtype.itemsize)
    return torch.empty(0, dtype=dtype, device=tensors[0].device)


_EMPTY = "cat, the first empty"
#: Each with the shape of its inputs.
JOINS: dict[str, tuple[tuple[int, ...], _Join]] = {
    "cat": ((3, 4), _named("cat")),
    "cat of columns": ((3, 4), _named("cat", dim=-1)),
    _EMPTY: ((4,), lambda tensors: torch.cat([tensors[0][:0], *tensors[1:]])),
    "concat": ((3, 4), _named("concat")),
    "concatenate": ((3, 4), _named("concatenate", dim=1)),
    "stack": ((3, 4), _named("stack")),
    "stack of columns": ((3, 4), _named("stack", dim=1)),
    "hstack": ((3, 4), _named("hstack")),
    "hstack of rows": ((4,), _named("hstack")),
    "vstack": ((3, 4), _named("vstack")),
    "row_stack": ((4,), _named("row_stack")),
    "dstack": ((3, 4), _named("dstack")),
    "column_stack": ((4,), _named("column_stack")),
    "cat into a tensor": ((3, 4), lambda tensors: torch.cat(tensors, out=_widest(tensors))),  # type: ignore[arg-type]
    "stack into a tensor": ((3, 4), lambda tensors: torch.stack(tensors, out=_widest(tensors))),  # type: ignore[arg-type]
    "block_diag": ((3, 4), lambda tensors: _torch.block_diag(*tensors)),
}


def _mixes(amp: SuiteAmp) -> list[tuple[torch.dtype, ...]]:
    """Return any two dtypes, and all three, in every order; MPS has no float64."""
    dtypes = [amp.dtype, torch.float32] + ([torch.float64] if amp.device.type != "mps" else [])
    return [*itertools.product(dtypes, repeat=2), *itertools.permutations(dtypes, 3)]


def _joined(amp: SuiteAmp, join: _Join, values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Join within a region; on a fake device return its dtype and no values."""
    fake = amp.device.kind is DeviceKind.FAKE
    with amp.device.tensors(), torch.no_grad():
        where = amp.device.torch_device
        inputs = [torch.empty_like(x, device=where) if fake else x.to(where) for x in values]
        with amp.device.autocast(amp.dtype):
            return join(inputs)


def _joins(target: Target) -> Iterable[str]:
    """Return the joins; fake tensors leave out empty inputs, for which test_hand_cast has that call."""
    return [join for join in JOINS if join != _EMPTY or target.device.kind is not DeviceKind.FAKE]


@pytest.mark.amp_parametrize("join", _joins)
def test_a_join_is_as_wide_as_its_widest(amp: SuiteAmp, join: str) -> None:
    """No tensor is cast to a narrower dtype, for all dtypes, their orders and all names of the operator."""
    shape, function = JOINS[join]
    torch.manual_seed(amp.config.seed)
    numbers = [torch.randn(shape, dtype=torch.float64) for _ in range(3)]
    for mix in _mixes(amp):
        values = [number.to(dtype) for number, dtype in zip(numbers, mix, strict=False)]
        widest = max(mix, key=lambda dtype: dtype.itemsize)
        actual = _joined(amp, function, values)
        wrong = dtype_name(actual.dtype) if actual.dtype is not widest else None
        if wrong is None and amp.device.kind is not DeviceKind.FAKE:
            exact = torch.equal(actual.cpu(), function([value.to(widest) for value in values]))
            wrong = None if exact else "the dtype, and different values"
        if wrong is not None:
            raise AmpFailure(
                f"{join} of {', '.join(map(dtype_name, mix))} loses bits within a region on {amp.target.id}",
                label_before="rule",
                before=f"{dtype_name(widest)}, with every bit of the inputs",
                now=wrong,
                likely="cat or stack no longer promotes, or a function made of them casts to its first tensor",
            )
