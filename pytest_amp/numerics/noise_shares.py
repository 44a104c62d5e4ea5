"""Attribute the noise of a step's gradients or outputs to the operator calls at which it arises.

The step runs twice on virtual tensors, with and without rounding. Both runs make the same calls in the same order,
since they have the same dtypes. The noise of the final tensors is then followed back through the calls: a call whose
result has no more noise than its arguments explain passes its share on to the calls that made them, and a call that
amplifies noise, or adds some, keeps the difference. Values that do not reach the final tensors, as those of memory
before it is written, have no share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.cases import Case, Realised
from pytest_amp.numerics import oracle
from pytest_amp.numerics.causes import operator_of
from pytest_amp.numerics.conditions import Conditions
from pytest_amp.numerics.errors import dense, norm
from pytest_amp.numerics.oracle.operation import is_real
from pytest_amp.numerics.oracle.virtual import values
from pytest_amp.numerics.sites import Site, Sites
from pytest_amp.numerics.step import Region, Step

#: Number of compared elements of a tensor: at most ``_SAMPLED``, or ``_FEW`` after ``_BUDGET`` elements of a run.
_SAMPLED, _FEW, _BUDGET = 2**16, 2**8, 2**26
#: Relative error above which an exact tensor consists of float64 cancellation errors only.
_VANISHES = 2.0**20
#: Operators that return uninitialized memory.
_UNWRITTEN = ("empty", "new_empty", "resize")
#: Operators that replace the values of their first argument without reading them.
_OVERWRITES = ("copy", "fill", "zero", "normal", "uniform", "bernoulli", "exponential", "random")
#: Operators to whose results the absolute errors of their arguments add up, by element or by part.
_ADDS, _JOINS = ("add", "sub", "rsub", "where", "lerp"), ("cat", "stack")


@dataclass(frozen=True)
class _Result:
    """Result of a call: the number of the call in its run, and that of the result."""

    call: int
    result: int


@dataclass(frozen=True)
class _Read:
    """Argument that a call reads: a sample of its values, its number of elements, and the results it consists of."""

    sample: torch.Tensor
    elements: int
    producers: tuple[_Result, ...]


@dataclass(frozen=True)
class Call:
    """Call of a virtual run; ``shape`` is that of its first argument."""

    operator: str
    site: Site
    reads: Sequence[_Read]
    results: Sequence[torch.Tensor]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Sampled(oracle.Predictor):
    """Predictor that records samples of the arguments and results of each call."""

    calls: list[Call] = field(default_factory=list)
    sites: Sites = field(default_factory=Sites)
    producers: dict[int, tuple[_Result, ...]] = field(default_factory=dict)
    _sizes: list[int] = field(default_factory=lambda: [0])

    def run(self, call: torch_private.Dispatched) -> Any:
        """Run one call as ``Predictor.run`` does, and record samples of it."""
        leaves = [leaf for leaf in call.flat[0] if _has_values(leaf)]
        overwritten = _overwritten(call)
        reads = [
            _Read(self._sample(leaf), leaf.numel(), self.producers.get(_memory(leaf), ()))
            for leaf in leaves
            if not any(leaf is other for other in overwritten)
        ]
        shape = tuple(leaves[0].shape) if leaves else ()
        result = super().run(call)
        results = [leaf for leaf in torch_private.flat(result)[0] if _has_values(leaf)]
        aliasing = torch_private.aliasing_of(call.overload)
        if not aliasing.views:
            for index, leaf in enumerate(results):
                producer = _Result(len(self.calls), index)
                # A write to a part of the memory leaves the rest as it was.
                rest = self.producers.get(_memory(leaf), ()) if aliasing.writes and not _is_whole(leaf) else ()
                self.producers[_memory(leaf)] = (*rest, producer)
        samples = [] if aliasing.views else [self._sample(leaf) for leaf in results]
        self.calls.append(Call(operator_of(call), self.sites.here(), reads, samples, shape))
        return result

    def _sample(self, tensor: torch.Tensor) -> torch.Tensor:
        flat = values(tensor).detach().flatten()
        most = _SAMPLED if self._sizes[0] < _BUDGET else _FEW
        sample = flat[:: max(1, flat.numel() // most)].clone()
        self._sizes[0] += sample.numel()
        return sample


def _overwritten(call: torch_private.Dispatched) -> list[object]:
    """Return the arguments whose values a call replaces without reading them."""
    written = torch_private.written_arguments(call.overload)
    named = [call.kwargs[name] for name in written if name in call.kwargs]
    return [*named, call.args[0]] if written and call.args and operator_of(call) in _OVERWRITES else named


def _is_whole(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has all values of its memory."""
    stored = values(tensor)
    return bool(stored.numel() * stored.element_size() >= stored.untyped_storage().nbytes())


def _has_values(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and is_real(leaf) and not leaf.is_complex() and leaf.numel() > 0


def _memory(tensor: torch.Tensor) -> int:
    return int(values(tensor).untyped_storage().data_ptr())


@dataclass(frozen=True)
class Noisy:
    """Call at which noise arises: ``share`` is the part of the final tensors' squared error that arises there.

    ``before`` and ``after`` are the relative L2 errors of its arguments and of its result, at most 1; ``flushed`` is
    the fraction of the result's values that underflowed to zero.
    """

    call: Call
    share: float
    before: float
    after: float
    flushed: float


@dataclass(frozen=True)
class _Run:
    calls: list[Call]
    producers: Mapping[int, tuple[_Result, ...]]
    step: Step
    names: dict[int, str]


def noisy_calls(  # noqa: PLR0913  # keywords of one run
    case: Case, realised: Realised, conditions: Conditions, region: Region, *, loss_scale: float, of_outputs: bool
) -> tuple[list[Noisy], dict[int, str]]:
    """Return the calls at which the noise of all gradients, or of all outputs, arises, the largest share first.

    Also returns the names of the modules by identity. Raises CannotFollow.
    """
    exact, rounded = (_run(case, realised, conditions, region, loss_scale, rounds=rounds) for rounds in (False, True))
    aligned = _aligned(exact.calls, rounded.calls)
    weights = _final(exact, rounded, of_outputs=of_outputs)
    noisy = []
    for number in range(len(rounded.calls) - 1, -1, -1):
        low = rounded.calls[number]
        wide = aligned.get(number)
        shares: dict[int, float] = {}
        for index in range(len(low.results)):
            weight = weights.pop(_Result(number, index), 0.0)
            if weight:
                shares[index] = _passed_on(wide, low, index, weight, weights)
        share = sum(shares.values())
        if wide is not None and share and not low.operator.startswith(_UNWRITTEN):
            worst = max(shares, key=lambda index: shares[index])
            before = max((_relative(read, other) for read, other in zip(low.reads, wide.reads, strict=True)), default=0)
            after = _relative_error(low.results[worst], wide.results[worst])
            flushed = _flushed(wide.results[worst], low.results[worst], conditions.precision.dtype)
            noisy.append(Noisy(low, share, min(before, 1.0), min(after, 1.0), flushed))
    return sorted(noisy, key=lambda noisy: -noisy.share), rounded.names


def _run(  # noqa: PLR0913  # keywords of one run
    case: Case, realised: Realised, conditions: Conditions, region: Region, loss_scale: float, *, rounds: bool
) -> _Run:
    predictor, copied = _Sampled(conditions.device.type, rounds), realised.on(conditions.device.torch_device)
    with predictor.sites.followed():
        step = oracle.run_virtual(case, copied, region, predictor, seed=conditions.seed, loss_scale=loss_scale).step
    return _Run(predictor.calls, predictor.producers, step, {id(m): name for name, m in copied.model.named_modules()})


def _aligned(exact: list[Call], rounded: list[Call]) -> dict[int, Call]:
    """Return the exact calls by the numbers of the rounded ones, until rounding makes the program take another branch.

    Views and copies are left out: the layouts of results, by which a program may make them, differ between the runs.
    """
    known = [call for call in exact if _computes(call)]
    numbers = [number for number, call in enumerate(rounded) if _computes(call)]
    aligned: dict[int, Call] = {}
    for wide, number in zip(known, numbers, strict=False):
        if wide.operator != rounded[number].operator or wide.shape != rounded[number].shape:
            break
        aligned[number] = wide
    return aligned


def _computes(call: Call) -> bool:
    return bool(call.results) and call.operator not in ("clone", "_unsafe_view")


def _final(exact: _Run, rounded: _Run, *, of_outputs: bool) -> dict[_Result, float]:
    """Return the part of the squared error of all final tensors that each of the calls' results has."""

    def tensors(step: Step) -> dict[str, torch.Tensor]:
        named = step.outputs if of_outputs else {**step.gradients, **step.inputs}
        return {name: value for name, value in named.items() if value is not None and _has_values(value)}

    known, actual = tensors(exact.step), tensors(rounded.step)
    errors = {name: norm(actual[name] - dense(known[name])) ** 2 for name in known.keys() & actual.keys()}
    whole = sum(errors.values())
    weights: dict[_Result, float] = {}
    for name, error in errors.items():
        producers = rounded.producers.get(_memory(actual[name]), ())
        for producer in producers:
            if whole and math.isfinite(whole):
                weights[producer] = weights.get(producer, 0.0) + error / whole / len(producers)
    return weights


def _passed_on(wide: Call | None, low: Call, index: int, weight: float, weights: dict[_Result, float]) -> float:
    """Pass the weight of a call's result on to what made its arguments; return the part that it keeps.

    Independent relative errors of factors add up in quadrature to that of their product. An argument with more noise
    than the result, of which little is seen there, counts as one with as much. An error of 1 is a value that is lost,
    which a later operator cannot lose again: larger ones count as 1.
    """
    if wide is None:  # a copy, or another branch, of whose noise nothing is known
        parts, passed = [1.0] * len(low.reads), 1.0
    else:
        after = min(_relative_error(low.results[index], wide.results[index]), 1.0)
        pairs = list(zip(low.reads, wide.reads, strict=True))
        squares = [min(_relative(*pair), after) ** 2 for pair in pairs]
        by_part = low.operator in _JOINS
        adds = low.operator in _ADDS or by_part
        parts = [_absolute(*pair, by_part=by_part) for pair in pairs] if adds else squares
        passed = min(1.0, sum(squares) / after**2) if after else 1.0
    whole = sum(parts)
    if not whole or not math.isfinite(whole):
        return weight
    for read, part in zip(low.reads, parts, strict=True):
        for producer in read.producers:
            weights[producer] = weights.get(producer, 0.0) + weight * passed * part / whole / len(read.producers)
    return weight * (1 - passed)


def _relative(low: _Read, wide: _Read) -> float:
    """Return the relative error of an argument; 0 if it consists of cancellation errors of float64."""
    error = _relative_error(low.sample, wide.sample)
    return error if error <= _VANISHES else 0.0


def _absolute(low: _Read, wide: _Read, *, by_part: bool) -> float:
    """Return the mean squared error of an argument, or with ``by_part`` the sum over all its elements."""
    mean = _distance(low.sample, wide.sample) ** 2 / max(low.sample.numel(), 1)
    return mean * low.elements if by_part else mean


def _flushed(exact: torch.Tensor, rounded: torch.Tensor, low: torch.dtype) -> float:
    """Return the fraction of a result's values other than zero that are zero with rounding, and too small for ``low``.

    A larger value that is zero with rounding is one that a mask or a comparison decided otherwise.
    """
    info = torch.finfo(low)
    expected = exact != 0
    lost = expected & (rounded == 0) & (exact.abs() < info.smallest_normal * info.eps)
    return float(lost.sum()) / max(int(expected.sum()), 1)


def _relative_error(value: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the relative L2 error, without the values that are equal, such as infinite ones (of masks)."""
    size, far = norm(exact[exact.isfinite()]), _distance(value, exact)
    if far == 0:
        return 0.0
    return far / size if size and math.isfinite(far) else math.inf


def _distance(value: torch.Tensor, exact: torch.Tensor) -> float:
    return norm((value - exact)[value != exact])
