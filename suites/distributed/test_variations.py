"""Variants of sharding, replication, resharding and recomputation: gradients equal those of one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import RankGroup

from . import ranks_variations
from .expectations import expect_ranks_agree, expect_same, needs_streams, settings
from .policies import OF_FSDP2, POLICIES


@dataclass(frozen=True)
class _Variation:
    """Wrapper, its options, and the policies of the default tier; the long tier checks the remaining policies, too."""

    unit: str
    options: dict[str, Any] = field(default_factory=dict)
    policies: tuple[str, ...] = ("low, reduced in float32",)


_BOTH = ("autocast", "low, reduced in float32")
_VARIATIONS = {
    "DDP, recomputed": _Variation("DDP", {"reentrant": False}, ("autocast",)),
    "DDP, recomputed by reentrant checkpoints": _Variation("DDP", {"reentrant": True}, ("autocast",)),
    "DDP, recomputed, static graph": _Variation("DDP", {"reentrant": True, "static_graph": True}, ("autocast",)),
    "FSDP1, recomputed": _Variation("FSDP1", {"reentrant": False}, _BOTH),
    "FSDP1, not split": _Variation("FSDP1", {"strategy": "NO_SHARD"}),
    "FSDP1, gathered once": _Variation("FSDP1", {"strategy": "SHARD_GRAD_OP"}),
    "FSDP1, a unit for each layer": _Variation("FSDP1", {"each": True}),
    "FSDP2, recomputed": _Variation("FSDP2", {"reentrant": False}, _BOTH),
    "FSDP2, copies": _Variation("FSDP2", {"copies": True}),
    "FSDP2, gathered once": _Variation("FSDP2", {"reshard": False}),
}


def _cases() -> Iterator[Any]:
    for name, variation in _VARIATIONS.items():
        rest = [] if variation.unit == "DDP" else ["autocast", "low", "low, reduced in float32", "float32"]
        for policy in dict.fromkeys([*variation.policies, *rest]):
            marks = [] if policy in variation.policies else [pytest.mark.amp_long]
            yield pytest.param(name, policy, id=f"{name}, {policy}", marks=marks)


@pytest.mark.parametrize(("name", "policy"), list(_cases()))
def test_gradients_are_those_of_one_process(amp: SuiteAmp, ranks: RankGroup, name: str, policy: str) -> None:
    """Gradients are bitwise equal; reductions use the policy's dtype, all-gathers that of the weights."""
    variation = _VARIATIONS[name]
    rule = (OF_FSDP2 if variation.unit == "FSDP2" else POLICIES)[policy]
    if variation.unit == "FSDP2":
        needs_streams(amp)
    arguments = {"policy": rule.requested(amp), "region": rule.region, "options": variation.options}
    answers = ranks.ask(ranks_variations.step, settings(amp, unit=variation.unit, **arguments))
    for number, answer in enumerate(answers):
        assert answer["float32"], f"gradients are kept in another dtype on rank {number}"
        for kind, *dtypes in answer["sent"]:
            expected = rule.gathered(amp) if kind == "all_gather" else rule.reduced(amp)
            assert dtypes == [expected], f"{kind} of {dtypes} on rank {number}, and not of {expected}"
        assert any(kind in {"all_reduce", "reduce_scatter"} for kind, *_ in answer["sent"]), "nothing was reduced"
    expect_ranks_agree(amp, answers, "gradients", subject=name)
    least = 2.0**-23 if rule.reduced(amp) == "float16" else 0.0
    expect_same(amp, answers[0]["gradients"], rule.gradients(amp), subject=name, least=least)
