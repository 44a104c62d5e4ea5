"""Functions that run on each rank: optimizers with sharded state, and averages of weights over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pytest_amp.distributed import Rank
from pytest_amp.torch_private import recorded_collectives

from .models import Keeping, state_of
from .programs import low_dtype, model_and_rows, on_cpu, sent
from .ranks_ddp import wrapped
from .training import train_steps


def train(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train some steps under DDP; each rank has the optimizer's state of a part of the parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model, rows = model_and_rows(rank, settings)
    if settings.get("overflow"):
        rows = {**rows, "overflow": torch.tensor(rank.number == 1)}
    parallel = wrapped(model, rank, {})
    optimizer = ZeroRedundancyOptimizer(
        parallel.parameters(),
        torch.optim.AdamW,
        parameters_as_bucket_view=settings["views"],
        lr=1e-2,
        foreach=False,
    )
    with recorded_collectives() as calls:
        trained = train_steps(parallel, rows, rank.device, low_dtype(settings), settings, optimizer=optimizer)
    # The first rank has the full state, gathered from the other ranks.
    optimizer.consolidate_state_dict(to=0)
    state = optimizer.state_dict()["state"] if rank.number == 0 else {}
    whole = {f"{place}.{name}": value for place, values in state.items() for name, value in values.items()}
    return {**trained, "state": on_cpu(whole), "sent": sent(calls)}


def average(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Average each rank's weights at every second call, in a region: the weights after each call."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    model = Keeping(settings["seed"], rank.number).to(rank.device)
    averager = PeriodicModelAverager(period=2)
    model.weight.grad = torch.zeros_like(model.weight)  # the remaining weights are not averaged
    averages = []
    with recorded_collectives() as calls, rank.autocast(low_dtype(settings)):
        for time in range(3):
            if time == 1:
                with torch.no_grad():
                    model.weight.copy_(state_of(settings["seed"], rank.number + 1)["weight"])
            averager.average_parameters(model.parameters())
            averages.append(model.weight.detach().cpu().clone())
    return {"weights": averages, "sent": sent(calls)}
