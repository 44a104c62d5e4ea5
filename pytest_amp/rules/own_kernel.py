"""Observation of the rule of an operator whose autocast kernel is not a CastPolicy wrapper.

Such a kernel casts in its own way (cuDNN's copies the weights into one flat buffer), so the calls below autocast differ
from those of manual casts. The dtypes that the operator itself receives still determine the rule.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from pytest_amp.devices.base import Device
from pytest_amp.precision import dtype_name
from pytest_amp.rules import variations
from pytest_amp.rules.candidates import Candidate, candidate_of, candidates
from pytest_amp.rules.manual_casts import Invocation, Refused, manual_plan
from pytest_amp.rules.observed import UNOBSERVED, UNRECOGNISED, Evidence, ObservedRule
from pytest_amp.rules.outcome import CallOutcome, scope, under_autocast
from pytest_amp.rules.samples import Sample
from pytest_amp.rules.spec import Rule
from pytest_amp.rules.variations import each_variation

_FLOATS = ("float16", "bfloat16", "float32", "float64")


def received(outcome: CallOutcome, overload: str) -> frozenset[str] | None:
    """Return the floating dtypes with which ``overload`` was called below autocast; None if it was not called."""
    calls = [call for call in outcome.calls if call.operator == overload]
    if not calls:
        return None
    dtypes = {tensor.partition("[")[0] for tensor in calls[-1].tensors}
    return frozenset(dtype for dtype in dtypes if dtype in _FLOATS)


def _predicted(candidate: Candidate, call: Invocation, device: Device) -> frozenset[str] | None:
    try:
        plan = manual_plan(candidate.rule, call, device_type=device.type, dtype=candidate.dtype)
    except Refused:
        return None
    return frozenset(dtype_name(tensor.dtype) for tensor in plan.carried_out(call).floats())


def observe_own_kernel(
    overload: str, samples: Iterable[Sample], device: Device, low: torch.dtype, rule: Rule
) -> ObservedRule:
    """Observe the rule of a kernel of its own: a rule fits if the operator receives the dtypes that it predicts."""
    remaining = _all_candidates(overload, low, rule)
    evidence: list[Evidence] = []
    reason = "the operator was never reached"
    for sample, variation in each_variation(overload, list(samples), low, variations.ordinary, variations.half_weights):
        with scope(device, variation):
            call = variation.invocation(overload, sample, device)
            outcome = under_autocast(call, device, low)
            dtypes = received(outcome, overload)
            if dtypes is None:
                reason = (outcome.message or reason).strip().partition("\n")[0]
                continue
            fitting = [candidate for candidate in remaining if _predicted(candidate, call, device) == dtypes]
        shown = Evidence(variation.name, tuple(sorted(dtypes)), outcome.result)
        evidence.append(shown)
        if not fitting:
            what = f"with {variation.name} arguments it received {', '.join(shown.casts)}"
            return ObservedRule(overload, UNRECOGNISED, what, tuple(evidence))
        remaining = fitting
    labels = [candidate.label for candidate in remaining]
    if len(remaining) == 1:
        return ObservedRule(overload, labels[0], None, tuple(evidence))
    return ObservedRule(overload, UNOBSERVED, f"fits {', '.join(labels)}: {reason}", tuple(evidence))


def _all_candidates(overload: str, low: torch.dtype, rule: Rule) -> list[Candidate]:
    expected = candidate_of(rule, low)
    known = candidates(overload, low)
    return known if expected in known else [*known, expected]
