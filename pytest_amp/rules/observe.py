"""Inference of an operator's rule by running it.

A recorder below autocast sees the calls that autocast makes: the casts, then the operator. A rule fits if manual casts
of the arguments, with autocast off, make the same calls with the same results in every variation of the arguments. The
calls before a failure count, so that an operator without a kernel for fake tensors is still classified by its casts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from pytest_amp import torch_private
from pytest_amp.devices.base import Device, DeviceKind
from pytest_amp.precision import dtype_name
from pytest_amp.rules import variations
from pytest_amp.rules.hand_cast import BANNED_SAYS, Invocation, Refused, applicable, cast_by_hand
from pytest_amp.rules.samples import Sample, samples
from pytest_amp.rules.spec import Rule, RuleName
from pytest_amp.rules.variations import Variation, Vary
from pytest_amp.torch_private import Call

#: In place of a rule: no rule fits the observed calls.
UNRECOGNISED = "unrecognised"
#: In place of a rule: it could not be determined here; ``ObservedRule.reason`` says why.
UNOBSERVED = "unobserved"

_CAST = "aten::_to_copy"


@dataclass(frozen=True)
class Evidence:
    """Observation of one variation: autocast's casts, and the dtypes of the result, or the error."""

    variation: str
    casts: tuple[str, ...]
    result: tuple[str, ...]


@dataclass(frozen=True)
class ObservedRule:
    """The observed rule of one overload.

    ``rule`` is a RuleName's value (with `` in float16`` if that is not the autocast dtype), UNRECOGNISED or UNOBSERVED;
    for the latter two ``reason`` says why.
    """

    overload: str
    rule: str
    reason: str | None
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class CallOutcome:
    """Outcome of one call below autocast: the calls it made, and its result or its error.

    ``result`` are dtypes and shapes; ``message`` is the error's message, which is not compared, since it may name
    dtypes and addresses.
    """

    calls: tuple[Call, ...]
    result: tuple[str, ...]
    message: str | None = field(default=None, compare=False)

    @property
    def is_banned(self) -> bool:
        """Return whether the call was refused as unsafe."""
        return self.message is not None and BANNED_SAYS in self.message

    def casts(self) -> tuple[str, ...]:
        """Return the casts at its beginning, as ``float32[3, 4] to bfloat16``."""
        return tuple(f"{call.tensors[0]} to {call.dtypes[0]}" for call in self.calls[: _leading(self.calls)])


@dataclass(frozen=True)
class Candidate:
    """A rule that an overload may have, and the dtype to which lower_precision_fp casts."""

    rule: RuleName
    dtype: torch.dtype
    label: str


def candidates(overload: str, low: torch.dtype) -> list[Candidate]:
    """Return the rules that ``overload`` can have under autocast in ``low``."""
    return [Candidate(rule, low, rule.value) for rule in applicable(overload)]


def label_of(rule: Rule, low: torch.dtype) -> str:
    """Return the value of ObservedRule.rule for an overload that has ``rule``."""
    same = rule.dtype is None or getattr(torch, rule.dtype) == low
    return rule.name.value if same else f"{rule.name.value} in {rule.dtype}"


def candidate_of(rule: Rule, low: torch.dtype) -> Candidate:
    """Return ``rule`` as a candidate."""
    return Candidate(rule.name, low if rule.dtype is None else getattr(torch, rule.dtype), label_of(rule, low))


@contextmanager
def scope(device: Device, variation: Variation) -> Iterator[None]:
    """Create and use the tensors of ``variation`` without gradients or warnings, on fake tensors if it says so.

    cuDNN uses deterministic algorithms only: its transposed convolutions in float64 are otherwise nondeterministic
    reductions, and two equal calls differ.
    """
    with ExitStack() as stack:
        stack.enter_context(torch_private.cudnn_deterministic())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch_private.quiet_fake_tensors())
        stack.enter_context(_tensors(device, variation))
        stack.enter_context(torch.inference_mode() if variation.inference else torch.no_grad())
        yield


def _tensors(device: Device, variation: Variation) -> AbstractContextManager[Any]:
    if device.kind is DeviceKind.FAKE:
        return torch_private.shared_fake_tensor_mode()
    # Not strict, torch would run an operator without a rule for fake tensors on real tensors of these layouts and
    # sizes: cuDNN's convolutions then crash with SIGSEGV (torch 2.11, H200).
    return torch_private.strict_fake_tensor_mode() if variation.faked else device.tensors()


def record(call: Callable[[], Any]) -> CallOutcome:
    """Run ``call`` under a recorder."""
    with torch_private.recorded_calls() as calls:
        try:
            result, message = described(call()), None
        except Refused as refused:
            result, message = ("RuntimeError",), str(refused)
        except Exception as error:  # noqa: BLE001 - whatever an operator raises is an outcome
            result, message = (type(error).__name__,), str(error)
    leading = _leading(calls)
    # The order in which C++ casts a call's arguments is undefined.
    ordered = sorted(calls[:leading], key=repr) + calls[leading:]
    return CallOutcome(tuple(ordered), result, message)


def _leading(calls: Iterable[Call]) -> int:
    count = 0
    for call in calls:
        if call.operator != _CAST:
            break
        count += 1
    return count


def described(result: Any) -> tuple[str, ...]:
    """Return the dtype and shape of each tensor in a result, and the type of anything else."""
    if isinstance(result, torch.Tensor):
        return (f"{dtype_name(result.dtype)}{list(result.shape)}",)
    if isinstance(result, (list, tuple)):
        return tuple(text for each in result for text in described(each))
    return (type(result).__name__,)


def under_autocast(call: Invocation, device: Device, low: torch.dtype) -> CallOutcome:
    """Record the outcome of ``call`` under autocast."""
    with device.autocast(low):
        return record(call)


def by_hand(candidate: Candidate, call: Invocation, device: Device) -> CallOutcome:
    """Record the outcome of ``call`` with autocast off and manual casts by ``candidate``."""

    def cast_and_call() -> Any:
        plan = cast_by_hand(candidate.rule, call, device_type=device.type, dtype=candidate.dtype)
        return plan.carried_out(call)()

    return record(cast_and_call)


def fits(prediction: CallOutcome, outcome: CallOutcome) -> bool:
    """Return whether an outcome under autocast equals the outcome of manual casts."""
    return prediction == outcome and prediction.is_banned == outcome.is_banned


def fitting(remaining: Iterable[Candidate], call: Invocation, outcome: CallOutcome, device: Device) -> list[Candidate]:
    """Return the candidates in ``remaining`` that fit ``outcome``, the outcome of ``call`` under autocast."""
    predictions: dict[object, CallOutcome] = {}  # candidates with equal plans run once
    found = []
    for candidate in remaining:
        try:
            plan = cast_by_hand(candidate.rule, call, device_type=device.type, dtype=candidate.dtype)
            signature: object = plan.signature(call)
        except Refused:
            signature = candidate
        if signature not in predictions:
            predictions[signature] = by_hand(candidate, call, device)
        if fits(predictions[signature], outcome):
            found.append(candidate)
    return found


def observe(overload: str, device: Device, low: torch.dtype, *, rule: Rule | None = None) -> ObservedRule:
    """Observe the rule of ``overload`` on ``device`` under autocast in ``low``.

    ``rule`` is the expected rule: it says whether the overload has a kernel of its own, and affects nothing else.
    Raises LookupError if this torch lacks the overload.
    """
    torch_private.find_overload(overload)
    from pytest_amp.rules.named import NAMED, UNREACHABLE, observe_named

    if overload in NAMED or overload in UNREACHABLE:
        return observe_named(overload, device, low, rule)
    made = samples(overload)
    if not made:
        return ObservedRule(overload, UNOBSERVED, "no sample arguments are known for it", ())
    if rule is not None and rule.own_kernel is not None:
        from pytest_amp.rules.own_kernel import observe_own_kernel

        return observe_own_kernel(overload, made, device, low, rule)
    return _classify(overload, made, device, low)


def _classify(overload: str, made: list[Sample], device: Device, low: torch.dtype) -> ObservedRule:
    remaining = candidates(overload, low)
    evidence: list[Evidence] = []
    messages: list[str] = []
    for sample, variation in each_variation(overload, made, low, variations.ordinary, variations.explicit_dtype):
        with scope(device, variation):
            call = variation.invocation(overload, sample, device)
            outcome = under_autocast(call, device, low)
            still = fitting(remaining, call, outcome, device)
        evidence.append(Evidence(variation.name, outcome.casts(), outcome.result))
        if outcome.message is not None:
            messages.append(outcome.message.strip().partition("\n")[0])
        if not still:
            return ObservedRule(overload, UNRECOGNISED, _misfit(remaining, evidence[-1]), tuple(evidence))
        remaining = still
    labels = [each.label for each in remaining]
    if len(remaining) == 1:
        return ObservedRule(overload, labels[0], None, tuple(evidence))
    if set(labels) == {RuleName.PROMOTE.value, RuleName.NONE.value} and not messages:
        return ObservedRule(overload, RuleName.NONE.value, None, tuple(evidence))  # one argument: nothing to promote
    reason = messages[0] if messages else "the sample does not tell them apart"
    return ObservedRule(overload, UNOBSERVED, f"fits {', '.join(labels)}: {reason}", tuple(evidence))


def each_variation(
    overload: str, made: list[Sample], low: torch.dtype, *vary: Vary
) -> Iterator[tuple[Sample, Variation]]:
    """Yield each variation of each sample."""
    for sample in made:
        for function in vary:
            for variation in function(overload, sample, low):
                yield sample, variation


def _misfit(remaining: list[Candidate], evidence: Evidence) -> str:
    casts = "; ".join(evidence.casts) or "nothing"
    labels = ", ".join(each.label for each in remaining)
    return f"with {evidence.variation} arguments it cast {casts} and gave {', '.join(evidence.result)}: not {labels}"
