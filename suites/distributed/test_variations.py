"""Variants of sharding, replication, resharding and recomputation: gradients equal those of one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_amp.amp import SuiteAmp
from pytest_amp.distributed import Rank, RankGroup
from pytest_amp.torch_private import recorded_collectives

from .expectations import expect_ranks_agree, expect_same, needs_streams, settings
from .models import backward, gradients
from .policies import OF_FSDP2, POLICIES
from .programs import dtype_of, low_dtype, model_and_rows, on_cpu, sent
from .ranks_ddp import wrapped as data_parallel
from .ranks_fsdp import gathered, mesh_of


def _recompute(model: nn.Module, *, reentrant: bool) -> None:
    """Recompute each layer's forward pass in backward."""
    for layer in model.children():
        forward = layer.forward

        def again(*args: Any, forward: Any = forward) -> Any:
            return checkpoint(forward, *args, use_reentrant=reentrant)

        layer.forward = again


def _one_unit(model: nn.Module, rank: Rank, settings: Mapping[str, Any]) -> Any:
    """Return FSDP1 in one unit, or with one for each linear layer."""
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    dtypes: Any = {name: dtype_of(value) for name, value in settings["policy"].items() if name != "output_dtype"}
    options = settings["options"]
    keywords: Any = {
        "mixed_precision": MixedPrecision(**dtypes) if any(dtypes.values()) else None,
        "sharding_strategy": ShardingStrategy[options.get("strategy", "FULL_SHARD")],
        "auto_wrap_policy": ModuleWrapPolicy({nn.Linear}) if options.get("each") else None,
    }
    return FullyShardedDataParallel(model, device_id=rank.device, use_orig_params=True, **keywords)


def _units(model: nn.Module, rank: Rank, settings: Mapping[str, Any]) -> Any:
    """Return FSDP2 over ranks or over replicas, with weights that are gathered again in backward or retained."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dtypes: Any = {name: dtype_of(value) for name, value in settings["policy"].items()}
    options = settings["options"]
    copies = init_device_mesh(rank.device.type, (rank.size, 1), mesh_dim_names=("copies", "shards"))
    keywords: Any = {
        "mesh": copies if options.get("copies") else mesh_of(rank),
        "mp_policy": MixedPrecisionPolicy(**dtypes),
        "reshard_after_forward": options.get("reshard", True),
    }
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **keywords)
    return fully_shard(model, **keywords)


def step(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one step: gradients and calls."""
    model, rows = model_and_rows(rank, settings)
    unit, options = settings["unit"], dict(settings["options"])
    if "reentrant" in options:
        _recompute(model, reentrant=options.pop("reentrant"))
    if unit == "DDP":
        parallel = data_parallel(model, rank, options)
    else:
        parallel = {"FSDP1": _one_unit, "FSDP2": _units}[unit](model, rank, settings)
    # A reentrant checkpoint runs backward only through inputs that have gradients.
    rows["inputs"].requires_grad_(settings["options"].get("reentrant", False))
    with recorded_collectives() as calls:
        backward(parallel, rows, lambda: rank.autocast(low_dtype(settings), enabled=settings["region"]))
    step_gradients = gathered(parallel) if unit == "FSDP1" else on_cpu(gradients(parallel))
    dtypes = {p.grad.dtype for p in parallel.parameters() if p.grad is not None}
    return {"gradients": step_gradients, "sent": sent(calls), "float32": dtypes == {torch.float32}}


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
    answers = ranks.ask(step, settings(amp, unit=variation.unit, **arguments))
    for number, answer in enumerate(answers):
        assert answer["float32"], f"gradients are kept in another dtype on rank {number}"
        for kind, *dtypes in answer["sent"]:
            expected = rule.gathered(amp) if kind == "all_gather" else rule.reduced(amp)
            assert dtypes == [expected], f"{kind} of {dtypes} on rank {number}, and not of {expected}"
        assert any(kind in {"all_reduce", "reduce_scatter"} for kind, *_ in answer["sent"]), "nothing was reduced"
    expect_ranks_agree(amp, answers, "gradients", subject=name)
    least = 2.0**-23 if rule.reduced(amp) == "float16" else 0.0
    expect_same(amp, answers[0]["gradients"], rule.gradients(amp), subject=name, least=least)
