"""Functions that run on each rank: the networks of the zoo, with the same batch on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from pytest_amp.cases import Case, Realised, wider_zoo, zoo
from pytest_amp.distributed import Rank
from pytest_amp.numerics import run_step

from .models import deterministic, plain
from .programs import low_dtype, on_cpu

#: Every case by name.
CASES = {case.name: case for case in (*zoo(), *wider_zoo())}


def _wrapped(model: nn.Module, rank: Rank, kind: str) -> nn.Module:
    if kind == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        # Every rank has the same batch, and therefore the same buffers, which need no synchronization.
        return DistributedDataParallel(model, broadcast_buffers=False, find_unused_parameters=True)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sharded: Any = fully_shard(model, mesh=init_device_mesh(rank.device.type, (rank.size,)))
    return sharded  # type: ignore[no-any-return]


def step(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one step of a case: its outputs, and gradients by name."""
    case: Case = CASES[settings["case"]]
    instance = case.realise(seed=settings["seed"]).on(rank.device)
    model = _wrapped(instance.model, rank, settings["parallel"])
    here = Realised(model, instance.batch)
    with deterministic():
        outcome = run_step(case, here, lambda: rank.autocast(low_dtype(settings)), seed=settings["seed"])
    gradients = {plain(name): value for name, value in outcome.gradients.items() if value is not None}
    return {
        "outputs": on_cpu(outcome.outputs),
        "gradients": on_cpu(gradients),
    }
