"""Checks beyond the name of a rule: an operator under autocast behaves exactly as with manual casts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import torch

from pytest_amp.devices.base import Device, DeviceKind
from pytest_amp.devices.faults import fault_in
from pytest_amp.rules import variations
from pytest_amp.rules.candidates import Candidate, candidate_of, fits, manual_outcome
from pytest_amp.rules.manual_casts import Invocation, Refused, manual_plan
from pytest_amp.rules.observe import observe
from pytest_amp.rules.observed import ObservedRule
from pytest_amp.rules.outcome import CallOutcome, described, scope, under_autocast
from pytest_amp.rules.own_kernel import received
from pytest_amp.rules.samples import Sample, further_samples, samples
from pytest_amp.rules.spec import Rule, expected
from pytest_amp.rules.unusual import unusual
from pytest_amp.rules.variations import Variation, Vary, each_variation
from pytest_amp.text.amounts import counted

#: The checks, by the variations of the arguments that each one makes.
CHECKS: Mapping[str, tuple[Vary, ...]] = MappingProxyType(
    {
        "hand_cast": (variations.ordinary, variations.other_half),
        "explicit_dtype": (variations.explicit_dtype,),
        "orders": (variations.orders,),
        "other_half": (variations.other_half,),
        "left_alone": (variations.unsuitable, variations.elsewhere),
    }
)

#: Parts of the messages of oneDNN without a kernel for a dtype on this CPU, of a build without a library, and of a
#: kernel for other cards.
_NO_KERNEL = ("could not create a primitive", "not compiled with", "only supports")


@dataclass(frozen=True)
class Checked:
    """The result of one check of one overload.

    ``ran`` are the variations with a result, ``refused`` the variations that raised an error both under autocast and
    with manual casts. ``failures`` describes the differences. ``result`` are the dtypes of the first result. ``cannot``
    is the reason if nothing can be checked on this machine.
    """

    check: str
    overload: str
    ran: tuple[str, ...]
    refused: tuple[str, ...]
    failures: tuple[str, ...]
    result: tuple[str, ...] = ()
    cannot: str | None = None


def examine(check: str, overload: str, device: Device, low: torch.dtype) -> dict[str, Any]:
    """Run ``rule`` or one of CHECKS on ``overload``; return the ObservedRule or the Checked as JSON data."""
    rule = expected(device.type, torch.__version__).get(overload)
    if check == "rule":
        return asdict(observe(overload, device, low, rule=rule))
    if rule is None:
        raise LookupError(f"no rule of {overload} is known for {device.type}")
    return asdict(follow(check, overload, device, low, rule=rule))


def observed_from(data: Mapping[str, Any]) -> ObservedRule:
    """Rebuild an ObservedRule from JSON data, without its evidence, which is for readers only."""
    return ObservedRule(data["overload"], data["rule"], data["reason"], ())


def checked_from(data: Mapping[str, Any]) -> Checked:
    """Rebuild a Checked from JSON data."""
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    return Checked(**fields)


def follow(check: str, overload: str, device: Device, low: torch.dtype, *, rule: Rule) -> Checked:
    """Compare ``overload`` under autocast with manual casts by ``rule``, in each variation of ``check``.

    Compared are the calls below autocast with their dtypes and shapes, and the dtypes and shapes of the results; on a
    real device also every bit of the results, where NaN equals NaN.
    """
    follower = _Follower(overload, device, low, rule, candidate_of(rule, low))
    ran: list[str] = []
    refused: list[str] = []
    failures: list[str] = []
    messages: list[str] = []
    result: tuple[str, ...] = ()
    for sample, variation in _calls(check, overload, rule, low):
        outcome, difference = follower.compare(sample, variation)
        if outcome.message is None:
            ran.append(variation.name)
            result = result or tuple(text.partition("[")[0] for text in outcome.result)
        else:
            refused.append(variation.name)
            messages.append(outcome.message.strip().partition("\n")[0])
        if difference is not None:
            failures.append(f"{variation.name}: {difference}")
    lacking = [text for text in messages if any(sign in text for sign in _NO_KERNEL)]
    cannot = lacking[0] if lacking and not ran and device.kind is not DeviceKind.FAKE else None
    return Checked(check, overload, tuple(ran), tuple(refused), tuple(failures), result, cannot)


def _calls(check: str, overload: str, rule: Rule, low: torch.dtype) -> Iterator[tuple[Sample, Variation]]:
    built = samples(overload)
    if check != "hand_cast":
        yield from each_variation(overload, built, low, *CHECKS[check])
        return
    built = built + further_samples(overload)
    yield from each_variation(overload, built, low, *CHECKS[check])
    if built and rule.own_kernel is None:
        yield from unusual(overload, built, rule.name, low)


@dataclass(frozen=True)
class _Follower:
    """Comparison of an overload under autocast with the same overload and manual casts."""

    overload: str
    device: Device
    low: torch.dtype
    rule: Rule
    candidate: Candidate

    def compare(self, sample: Sample, variation: Variation) -> tuple[CallOutcome, str | None]:
        """Return the outcome under autocast, and its difference from manual casts, if any."""
        with scope(self.device, variation):
            call = variation.invocation(self.overload, sample, self.device)
            outcome = under_autocast(call, self.device, self.low)
            prediction = manual_outcome(self.candidate, call, self.device)
        if variation.inference:  # torch records casts differently in inference mode
            same = outcome.result == prediction.result
            return (
                outcome,
                None if same else f"gives {_listed(outcome.result)}, with manual casts {_listed(prediction.result)}",
            )
        difference = self._different_calls(outcome, prediction)
        if difference is None and self.device.kind is not DeviceKind.FAKE and not variation.faked:
            difference = self._different_values(sample, variation)
        return outcome, difference

    def _different_calls(self, outcome: CallOutcome, prediction: CallOutcome) -> str | None:
        if self.rule.own_kernel is not None:
            actual, predicted = received(outcome, self.overload), received(prediction, self.overload)
            same = actual is None or actual == predicted
            return None if same else f"it received {_listed(actual)}, with manual casts {_listed(predicted)}"
        if fits(prediction, outcome):
            return None
        return f"{_shown(outcome)}, with manual casts {_shown(prediction)}"

    def _different_values(self, sample: Sample, variation: Variation) -> str | None:
        with scope(self.device, variation):
            invocation, fresh, untouched = (variation.invocation(self.overload, sample, self.device) for _ in range(3))
            with torch.enable_grad():  # as users call it, without a recorder
                with self.device.autocast(self.low):
                    actual = _results(invocation)
                self.device.synchronize()
                predicted = _results(self._cast(fresh))
            changed = [index for index, (a, b) in enumerate(_pairs(invocation, untouched)) if not same_bits(a, b)]
        if changed:
            return f"floating argument {changed[0]} was written to"
        if isinstance(actual, str) or isinstance(predicted, str):
            return None if actual == predicted else f"gives {actual!r}, with manual casts {predicted!r}"
        if actual.keys() != predicted.keys():
            return f"gives tensors at {sorted(actual)}, with manual casts at {sorted(predicted)}"
        for index, a in actual.items():
            b = predicted[index]
            if index not in sample.undefined and not same_bits(a, b):
                return f"result {index} differs from that of manual casts in {_count_different(a, b)}"
        return None

    def _cast(self, call: Invocation) -> Invocation | None:
        rule, dtype = self.candidate.rule, self.candidate.dtype
        try:
            return manual_plan(rule, call, device_type=self.device.type, dtype=dtype).carried_out(call)
        except Refused:
            return None


def _listed(dtypes: Collection[str] | None) -> str:
    return ", ".join(sorted(dtypes)) if dtypes else "nothing"


def _shown(outcome: CallOutcome) -> str:
    casts = f"casts {'; '.join(outcome.casts())}, " if outcome.casts() else ""
    return f"{casts}runs {counted(len(outcome.calls), 'call')} and gives {', '.join(outcome.result)}"


def _pairs(one: Invocation, other: Invocation) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    return zip(one.floats(), other.floats(), strict=True)


def _results(call: Invocation | None) -> dict[int, torch.Tensor] | str:
    """Return the tensors of a call's result by index, or the name of its error; for None, that of a refusal.

    A back end may omit some of several results: the remaining ones keep their index.
    """
    try:
        if call is None:
            return "RuntimeError"
        return {place: leaf for place, leaf in enumerate(_leaves(call())) if isinstance(leaf, torch.Tensor)}
    except Exception as error:  # whatever an operator raises is an outcome
        if fault_in(error) is not None:  # a full device says nothing about the operator
            raise
        return type(error).__name__


def _leaves(result: Any) -> Iterator[Any]:
    if isinstance(result, (list, tuple)):
        for item in result:
            yield from _leaves(item)
    else:
        yield result


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same dtype, shape and bits; all NaNs are equal."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return int(_different(one, other).sum()) == 0


def _different(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    one, other = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (one, other))
    if not one.is_floating_point():
        return one != other
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    differs = one.contiguous().view(width) != other.contiguous().view(width)
    return differs & ~(one.isnan() & other.isnan())


def _count_different(one: torch.Tensor, other: torch.Tensor) -> str:
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"dtype or shape: {described(one)[0]}, {described(other)[0]}"
    different = _different(one, other)
    return f"{int(different.sum())} of {different.numel()} values"
