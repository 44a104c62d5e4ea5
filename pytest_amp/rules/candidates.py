"""Rules that an overload may have, and the test of one against the outcome of a call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from pytest_amp.devices.base import Device
from pytest_amp.rules.manual_casts import Invocation, Refused, applicable, manual_plan
from pytest_amp.rules.outcome import CallOutcome, record
from pytest_amp.rules.spec import Rule, RuleName


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


def manual_outcome(candidate: Candidate, call: Invocation, device: Device) -> CallOutcome:
    """Record the outcome of ``call`` with autocast off and manual casts by ``candidate``."""

    def cast_and_call() -> Any:
        plan = manual_plan(candidate.rule, call, device_type=device.type, dtype=candidate.dtype)
        return plan.carried_out(call)()

    return record(cast_and_call)


def fits(prediction: CallOutcome, outcome: CallOutcome) -> bool:
    """Return whether an outcome under autocast equals the outcome of manual casts."""
    return prediction == outcome and prediction.is_banned == outcome.is_banned


def fitting(remaining: Iterable[Candidate], call: Invocation, outcome: CallOutcome, device: Device) -> list[Candidate]:
    """Return the candidates in ``remaining`` that fit ``outcome``, the outcome of ``call`` under autocast."""
    predictions: dict[object, CallOutcome] = {}  # candidates with equal plans run once
    candidates = []
    for candidate in remaining:
        try:
            plan = manual_plan(candidate.rule, call, device_type=device.type, dtype=candidate.dtype)
            signature: object = plan.signature(call)
        except Refused:
            signature = candidate
        if signature not in predictions:
            predictions[signature] = manual_outcome(candidate, call, device)
        if fits(predictions[signature], outcome):
            candidates.append(candidate)
    return candidates
