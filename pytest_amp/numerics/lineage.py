"""Record the operator calls of a run and their data dependencies, to trace a non-finite value to its origin.

Tensors are identified by their memory: views and saved tensors are attributed to the call that wrote that memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from pytest_amp import torch_private
from pytest_amp.numerics.causes import Cause, cause_of, constants_of, operator_of
from pytest_amp.numerics.oracle.operation import is_real
from pytest_amp.numerics.sites import Site, Sites

#: Dtypes whose values are checked for infinities and NaN.
_CHECKED_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
#: Prefixes of the operators that return uninitialized memory.
_UNINITIALIZED = ("aten::empty", "aten::new_empty", "aten::resize")
#: Number of calls, from a tensor backward, among which ``_vanished`` searches for a constant. Between the addition of a
#: constant (or a bound) and its use there may be a root and a cast.
_SEARCHED_CALLS = 4

#: The memory of a tensor: its device and its address.
_Memory: TypeAlias = tuple[torch.device, int]


@dataclass(frozen=True)
class Record:
    """Operator call that created or modified tensors.

    ``number`` counts calls from 0. ``parents`` are the calls that computed its arguments. ``finite`` is whether its
    results are finite. ``cause`` is set if the results are not finite but the arguments are. ``vanished`` are the
    constants among the arguments that underflow to zero in the dtype of the result.
    """

    number: int
    operator: str
    site: Site
    parents: tuple[Record, ...]
    finite: bool
    cause: Cause | None
    vanished: tuple[float, ...]


@dataclass
class Lineage:
    """Recorder of the operator calls of a run, forward and backward.

    ``records`` has the last call that wrote each memory. ``origins`` are the calls with finite arguments and non-finite
    results, in order. ``calls`` is the number of calls.
    """

    device_type: str
    records: dict[_Memory, Record] = field(default_factory=dict)
    origins: list[Record] = field(default_factory=list)
    calls: int = 0
    _sites: Sites = field(default_factory=Sites)
    _uninitialized: set[_Memory] = field(default_factory=set)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Record the calls inside the block."""
        with self._sites.followed(), torch_private.dispatched_calls(self._run):
            yield

    def origins_of(self, tensors: Iterable[torch.Tensor]) -> list[Record]:
        """Return the calls that caused non-finite values of ``tensors``, in order; all ``origins`` if none is known."""
        pending = [record for tensor in tensors if (record := self._record_of(tensor)) is not None]
        visited: dict[int, Record] = {}
        while pending:
            record = pending.pop()
            if not record.finite and record.number not in visited:
                visited[record.number] = record
                pending += record.parents
        causes = [record for record in visited.values() if record.cause is not None]
        return sorted(causes, key=lambda record: record.number) or self.origins

    def _run(self, call: torch_private.Dispatched) -> Any:
        number, self.calls = self.calls, self.calls + 1
        aliasing = torch_private.aliasing_of(call.overload)
        if aliasing.views or not torch_private.returns_tensors(call.overload):
            return call()
        leaves, _ = call.flat
        site, memory = self._sites.here(), [_memory_of(leaf) for leaf in leaves]
        inputs = [
            x for x, key in zip(leaves, memory, strict=True) if key is not None and key not in self._uninitialized
        ]
        parents = {record.number: record for key in memory if key is not None and (record := self.records.get(key))}
        finite = all(map(_is_finite, inputs))
        before = replace(call, args=_copied(call.args), kwargs=_copied(call.kwargs)) if aliasing.writes else call
        result = call()
        results = [value for value in torch_private.flat(result)[0] if _memory_of(value) is not None]
        if call.overload.name().startswith(_UNINITIALIZED):
            self._uninitialized.update(key for value in results if (key := _memory_of(value)) is not None)
            return result
        nonfinite = [value for value in results if is_real(value) and not _is_finite(value)]
        cause = cause_of(before, nonfinite[0], self.device_type, self._vanished) if finite and nonfinite else None
        record = Record(
            number=number,
            operator=operator_of(call),
            site=site,
            parents=tuple(parents.values()),
            finite=not nonfinite,
            cause=cause,
            vanished=constants_of(before, results).vanished,
        )
        for value in results:
            key = _memory_of(value)
            if key is not None:
                self.records[key] = record
                self._uninitialized.discard(key)
        if cause is not None:
            self.origins.append(record)
        return result

    def _record_of(self, tensor: torch.Tensor) -> Record | None:
        key = _memory_of(tensor)
        return None if key is None else self.records.get(key)

    def _vanished(self, tensor: torch.Tensor) -> tuple[float, str] | None:
        """Return the nearest constant before ``tensor`` that underflowed to zero, with its operator and line."""
        latest = self._record_of(tensor)
        records = [] if latest is None else [latest]
        for _ in range(_SEARCHED_CALLS):
            for record in records:
                if record.vanished:
                    return record.vanished[0], f"{record.operator} at {record.site.line or 'its module'}"
            records = [parent for record in records for parent in record.parents]
        return None


def _memory_of(value: object) -> _Memory | None:
    """Return the memory of a tensor; None for other values, and for a tensor without its own memory."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not value.numel():
        return None
    if not torch_private.has_memory(value) or torch_private.values_of(value) is not None:
        return None
    try:
        address = value.untyped_storage().data_ptr()
    except RuntimeError:  # a subclass of tensors that has no storage
        return None
    return (value.device, address) if address else None


def _is_finite(value: torch.Tensor) -> bool:
    return value.dtype not in _CHECKED_DTYPES or bool(value.isfinite().all())


def _copied(tree: Any) -> Any:
    leaves, spec = torch_private.flat(tree)
    return torch_private.unflat([x.clone() if isinstance(x, torch.Tensor) else x for x in leaves], spec)
