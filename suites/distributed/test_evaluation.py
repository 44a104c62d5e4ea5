"""Evaluation on ranks equals that of one process, in the region and with the policy of training, in each grad mode."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import RankGroup

from . import ranks_ddp, ranks_fsdp
from .expectations import expect_same, needs_streams, settings
from .models import SIZE, Tensors, evaluated, realised, rows_of
from .policies import POLICIES, Policy

POLICY = {name: POLICIES[name] for name in ("low, reduced in float32, output float32", "autocast", "float32")}


def _expected(amp: SuiteAmp, policy: Policy) -> list[Tensors]:
    """Return the results of each rank's rows in one process, with the policy's manual casts of weights and inputs."""
    outputs = []
    for number in range(SIZE):
        instance = realised(amp.config.seed, amp.device.torch_device)
        rows = rows_of(number, instance.batch)
        region: Any = amp.autocast if policy.region else contextlib.nullcontext
        if policy.param is not None:
            instance.model.to(amp.dtype)
            rows["inputs"] = rows["inputs"].to(amp.dtype)
        returned = getattr(torch, policy.returned(amp))
        outputs.append({name: value.to(returned) for name, value in evaluated(instance.model, rows, region).items()})
    return outputs


def test_ddp_evaluates_in_the_region(amp: SuiteAmp, ranks: RankGroup) -> None:
    """Evaluation after a training step is bitwise equal; there is nothing to send."""
    answers = ranks.ask(ranks_ddp.evaluate, settings(amp))
    for number, (answer, expected) in enumerate(zip(answers, _expected(amp, POLICIES["autocast"]), strict=True)):
        expect_same(amp, answer["logits"], expected, subject=f"DDP in evaluation, rank {number}")
        assert answer["sent"] == []


@pytest.mark.parametrize("policy", POLICY)
@pytest.mark.parametrize("unit", ["FSDP1", "FSDP2"])
def test_shards_are_evaluated_as_they_are_trained(amp: SuiteAmp, ranks: RankGroup, unit: str, policy: str) -> None:
    """Shards are gathered and cast by the policy, or in the region, bit for bit."""
    rule = POLICY[policy]
    if unit == "FSDP2":
        needs_streams(amp)
    elif rule.output is not None:
        rule = Policy(param=rule.param, reduce=rule.reduce)  # FSDP1 has no dtype of outputs
    arguments = settings(amp, unit=unit, policy=rule.requested(amp), region=rule.region)
    for number, (answer, expected) in enumerate(
        zip(ranks.ask(ranks_fsdp.evaluate, arguments), _expected(amp, rule), strict=True)
    ):
        expect_same(amp, answer["logits"], expected, subject=f"{unit} ({policy}) in evaluation, rank {number}")
