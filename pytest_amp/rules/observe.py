"""Inference of an operator's rule by running it.

A recorder below autocast sees the calls that autocast makes: the casts, then the operator. A rule fits if manual casts
of the arguments, with autocast off, make the same calls with the same results in every variation of the arguments. The
calls before a failure count, so that an operator without a kernel for fake tensors is still classified by its casts.
"""

from __future__ import annotations

import torch

from pytest_amp import torch_private
from pytest_amp.devices.base import Device
from pytest_amp.rules import variations
from pytest_amp.rules.candidates import Candidate, candidates, fitting
from pytest_amp.rules.named import NAMED, UNREACHABLE, observe_named
from pytest_amp.rules.observed import UNOBSERVED, UNRECOGNISED, Evidence, ObservedRule
from pytest_amp.rules.outcome import scope, under_autocast
from pytest_amp.rules.own_kernel import observe_own_kernel
from pytest_amp.rules.samples import Sample, samples
from pytest_amp.rules.spec import Rule, RuleName
from pytest_amp.rules.variations import each_variation


def observe(overload: str, device: Device, low: torch.dtype, *, rule: Rule | None = None) -> ObservedRule:
    """Observe the rule of ``overload`` on ``device`` under autocast in ``low``.

    ``rule`` is the expected rule: it says whether the overload has a kernel of its own, and affects nothing else.
    Raises LookupError if this torch lacks the overload.
    """
    torch_private.find_overload(overload)
    if overload in NAMED or overload in UNREACHABLE:
        return observe_named(overload, device, low, rule)
    built = samples(overload)
    if not built:
        return ObservedRule(overload, UNOBSERVED, "no sample arguments are known for it", ())
    if rule is not None and rule.own_kernel is not None:
        return observe_own_kernel(overload, built, device, low, rule)
    return _classify(overload, built, device, low)


def _classify(overload: str, samples: list[Sample], device: Device, low: torch.dtype) -> ObservedRule:
    remaining = candidates(overload, low)
    evidence: list[Evidence] = []
    messages: list[str] = []
    for sample, variation in each_variation(overload, samples, low, variations.ordinary, variations.explicit_dtype):
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
    labels = [candidate.label for candidate in remaining]
    if len(remaining) == 1:
        return ObservedRule(overload, labels[0], None, tuple(evidence))
    if set(labels) == {RuleName.PROMOTE.value, RuleName.NONE.value} and not messages:
        return ObservedRule(overload, RuleName.NONE.value, None, tuple(evidence))  # one argument: nothing to promote
    reason = messages[0] if messages else "the sample does not tell them apart"
    return ObservedRule(overload, UNOBSERVED, f"fits {', '.join(labels)}: {reason}", tuple(evidence))


def _misfit(remaining: list[Candidate], evidence: Evidence) -> str:
    casts = "; ".join(evidence.casts) or "nothing"
    labels = ", ".join(candidate.label for candidate in remaining)
    return f"with {evidence.variation} arguments it cast {casts} and gave {', '.join(evidence.result)}: not {labels}"
