"""Functions that run on each rank: uneven numbers of batches, within DDP's ``join``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pytest_amp.distributed import Rank
from pytest_amp.torch_private import recorded_collectives

from .models import Tensors, loss
from .programs import low_dtype, model_and_rows, on_cpu, sent
from .ranks_accumulation import micro_batch
from .ranks_ddp import wrapped

#: Number of batches of each rank.
BATCHES = (3, 1)
RATE, MOMENTUM = 0.5, 0.5


def batches_of(number: int, rows: Mapping[str, torch.Tensor]) -> list[Tensors]:
    """Return a rank's batches."""
    return [micro_batch(rows, index, 3) for index in range(BATCHES[number])]


def train(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train SGD with momentum over all batches of a rank; return the losses, the final weights and the collectives."""
    model, rows = model_and_rows(rank, settings)
    parallel = wrapped(model, rank, {})
    optimizer = torch.optim.SGD(parallel.parameters(), lr=RATE, momentum=MOMENTUM, foreach=False)
    losses = []
    every = settings["divide_by_initial_world_size"]
    with recorded_collectives() as calls, parallel.join(divide_by_initial_world_size=every):
        for batch in batches_of(rank.number, rows):
            optimizer.zero_grad()
            with rank.autocast(low_dtype(settings)):
                value = loss(parallel, batch)["loss"]
            torch.autograd.backward(value)
            optimizer.step()
            losses.append(float(value.detach()))
    weights = {name.removeprefix("module."): p.detach() for name, p in parallel.named_parameters()}
    return {"losses": losses, "weights": on_cpu(weights), "sent": sent(calls)}
