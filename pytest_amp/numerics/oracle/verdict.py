"""Bounds on the difference between an operator of a real step and its rounding model, with their derivation.

An operator that computes in float32 and rounds to a low dtype with unit roundoff u is, before it rounds, within
float32's error of the float64 value. This gives the following bounds:

- Error of a low-precision result: the same as the model's. If float32's error flips a rounding near the midpoint of two
  low-precision values, both are equally far from the exact value. Only an additional rounding increases the error: two
  independent roundings of the same size give sqrt(2). EXCESS is 1.25, between 1 and sqrt(2). The largest measured ratio
  is 1.17, for a rounded variance of 49 values, and 1.05 otherwise (torch 2.13, CPU, 112 cases, 5 seeds).
- Share of elements equal to the model's: all but those near a midpoint. For a tenth of the elements (SHARE) to differ,
  float32 sums would need an error of 0.05 ulp of the low dtype, which is 400 float32 roundings in fp16 and 3000 in
  bf16; a second rounding changes a quarter of the elements or more. For cancelling sums nearly a tenth may differ
  without a larger error, so a small share of equal elements is a fault only if the excess is above SHARE_EXCESS.
- Nondeterministic reduction (``ANY_ORDER``): its error is an independent draw of the model's, and may be larger by
  chance, by at most the factor ``colliding_updates.spread``. A fault has to exceed that twice, since the call is
  repeated on other values. The share of equal elements is not checked. A reduction without colliding updates rounds
  once, and is compared with a model that does.
- Repetition: no single draw is a fault. A low-precision result with a larger error than its model's, such as one whose
  terms cancel in float32 (the gradient of the sum of squares of a normalization's output), is computed again on other
  values, and must exceed the bound again.
- Error of a float32 result: no intermediate value was rounded if the error is below the geometric mean of the unit
  roundoffs of float32 and the low dtype. If the terms cancel, the error is relative to their absolute values. A long
  sum, whose float32 roundings may sum to more, is measured again on other values. See ``oracle.sums``.
- Values of a float32 result: if the exact values lie between those of the low dtype, so must the result's, again on
  other values, whose sums do not cancel; except those that the model rounds, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from pytest_amp.numerics import tolerance
from pytest_amp.numerics.oracle.models import ModelName
from pytest_amp.numerics.oracle.observer import Agreement, ObservedCall
from pytest_amp.numerics.oracle.operation import LOW
from pytest_amp.numerics.oracle.sums import most_of_float32, probable, roundoff
from pytest_amp.precision import dtype_name

EXCESS = 1.25
SHARE = 0.9
SHARE_EXCESS = 1.05
#: Number of elements below which a share may be due to chance.
ENOUGH = 64


@dataclass(frozen=True)
class Fault:
    """Difference between one operator call and its model: ``what`` the call does, and the expected ``model``."""

    call: ObservedCall
    what: str
    model: str
    likely: str

    @property
    def operator(self) -> str:
        """The operator, with the surrounding operator that has a rule, as users call it."""
        operator, around = self.call.operator.removeprefix("aten::"), self.call.place.operator
        return operator if around is None else f"{operator} (of {around.removeprefix('aten::')})"

    @property
    def place(self) -> str:
        """The module and the pass."""
        return f"{self.call.place.module or 'the model'}, {self.call.place.direction.value} pass"


def faults(calls: Iterable[ObservedCall], low: torch.dtype, scale: float = 1.0) -> list[Fault]:
    """Return the calls that do not follow their model, worst kinds first; bounds are multiplied by ``scale``."""
    faults_of_calls = [
        fault for call in calls for result in call.results if (fault := fault_of_result(call, result, low, scale))
    ]
    return sorted(faults_of_calls, key=lambda fault: _ORDER.index(fault.likely))


_DTYPE = "the kernel returns another dtype than torch's type promotion gives"
_HOLLOW = "the operator rounds an intermediate result, and casts its result back"
_WIDE = "the operator computes or accumulates in the low dtype, although its result is float32"
_LOW = "the operator rounds intermediate results, not only its result, or accumulates in the low dtype"
_SHARE = "the operator rounds twice"
_GARBAGE = "its error is not a rounding error: the kernel is wrong, or reads or writes memory outside of its arguments"
_UNLIKE = (
    "the kernel is wrong on this machine, or accumulates many terms, or terms that cancel, in the low dtype: its error "
    "is of the size of its result"
)
_ORDER = (_GARBAGE, _DTYPE, _HOLLOW, _WIDE, _UNLIKE, _LOW, _SHARE)
#: Relative error (in units of the model's, if that is above 1) that no rounding causes, even if terms cancel.
_NO_ROUNDING = 10.0


def fault_of_result(call: ObservedCall, result: Agreement, low: torch.dtype, scale: float) -> Fault | None:
    """Return the fault of one result, confirmed on other values if measured; None if it follows its model."""
    if result.expected_dtype is not None and result.expected_dtype != result.dtype:
        return Fault(call, f"returned {dtype_name(result.dtype)}", dtype_name(result.expected_dtype), _DTYPE)
    fault = _fault_of_values(call, result, low, scale)
    if fault is None or result.again is None or _fault_of_values(call, result.again, low, scale, again=True):
        return fault
    return None


def _fault_of_values(
    call: ObservedCall, result: Agreement, low: torch.dtype, scale: float, *, again: bool = False
) -> Fault | None:
    if result.dtype in (torch.float32, torch.float64):
        return _fault_of_float32(call, result, low, scale, again=again)
    return _fault_of_low(call, result, low, scale) if result.dtype in LOW else None


def _fault_of_float32(
    call: ObservedCall, result: Agreement, low: torch.dtype, scale: float, *, again: bool
) -> Fault | None:
    kept_low = call.model.name is ModelName.RUNNING_SUM and any(dtype == low for dtype in call.given)
    if result.hollow and not (kept_low or result.rounded_by_model):
        return Fault(call, f"returned float32 with values of {dtype_name(low)} alone", _model(call), _HOLLOW)
    error, most = error_and_bound(call, result, low, scale, again=again)
    if error > most:
        return Fault(call, f"returned float32 with an error of {error:.2g}", f"at most {most:.2g}", _WIDE)
    return None


def _fault_of_low(call: ObservedCall, result: Agreement, low: torch.dtype, scale: float) -> Fault | None:
    excess, most = error_and_bound(call, result, low, scale)
    if excess > most:
        return Fault(call, f"has {excess:.3g} times the error of its model", _model(call), _likely_of_low(result))
    unlike = unequal(call, result)
    if unlike is not None and unlike > (1 - SHARE) * scale and excess > SHARE_EXCESS:
        return Fault(call, f"equals its model in {1 - unlike:.0%} of its elements", _model(call), _SHARE)
    return None


def _likely_of_low(result: Agreement) -> str:
    """Return the likely cause of a low-precision result's larger error than its model's."""
    if result.error > _NO_ROUNDING * max(1.0, result.ideal):
        return _GARBAGE
    return _UNLIKE if result.ideal < tolerance.MOST_NOISE < result.error else _LOW


def error_and_bound(
    call: ObservedCall, result: Agreement, low: torch.dtype, scale: float = 1.0, *, again: bool = False
) -> tuple[float, float]:
    """Return the error of a result and its bound: relative L2 in float32, in units of the model's in a low dtype.

    ``again`` is whether this is the repeated measurement on other values.
    """
    factor = call.model.factor
    if result.dtype in LOW:
        least = tolerance.floor(result.elements, roundoff(result.dtype))
        return result.error / max(result.ideal, least), EXCESS * factor * result.spread * scale
    least = max(most_of_float32(low), probable(call.longest)) if again else most_of_float32(low)
    rounds = EXCESS if result.ideal > least else 1.0  # a model with low-precision sums
    return result.error, result.ideal * factor * rounds + least * scale


def unequal(call: ObservedCall, result: Agreement) -> float | None:
    """Return the share of a low-precision result's elements that differ from its model's; None if it has no meaning."""
    known = call.model.name is not ModelName.UNMODELLED and result.spread == 1.0
    return 1 - result.equal / result.elements if known and result.elements >= ENOUGH else None


def _model(call: ObservedCall) -> str:
    return f"{call.model.name.value}: {call.model.source}"
