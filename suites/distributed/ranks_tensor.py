"""Programs of ranks: tensor parallel linear layers under autocast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from pytest_amp.distributed import Rank
from pytest_amp.precision import dtype_name
from pytest_amp.torch_private import recorded_collectives

from .models import backward, gradients, realised
from .programs import full, low_dtype, on_cpu, sent
from .training import train_steps


def parallel_layers(model: nn.Module, rank: Rank, *, only: bool = False) -> nn.Module:
    """The first linear layer split by its outputs, the second by its inputs.

    ``only`` those are trained: GradScaler refuses gradients of which some are in shards and some are not.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(rank.device.type, (rank.size,))
    for parameter in model[0].parameters() if only else ():  # type: ignore[index]
        parameter.requires_grad_(requires_grad=False)
    return parallelize_module(model, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})


def step(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """One step on the whole batch, which every rank has."""
    made = realised(settings["seed"], rank.device)
    parallel = parallel_layers(made.model, rank)
    with recorded_collectives() as calls:
        outputs = backward(parallel, made.batch, lambda: rank.autocast(low_dtype(settings)))
    return {
        "loss": float(outputs["loss"]),
        "output": dtype_name(outputs["logits"].dtype),
        "logits": on_cpu({"logits": full(outputs["logits"])})["logits"],
        "sent": sent(calls),
        "gradients": on_cpu(gradients(parallel)),
        "parameters": sorted({dtype_name(p.dtype) for p in parallel.parameters()}),
    }


def train(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Some steps; in the second one the gradient of one rank's shard may overflow."""
    made = realised(settings["seed"], rank.device)
    parallel = parallel_layers(made.model, rank, only=settings["only"])
    return train_steps(parallel, made.batch, rank.device, low_dtype(settings), settings)
