"""Functions that run on each rank: tensor parallel linear layers under autocast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pytest_amp.distributed import Rank
from pytest_amp.precision import dtype_name
from pytest_amp.torch_private import recorded_collectives

from .models import Tensors, backward, gradients, realised, rows_of
from .programs import full, low_dtype, on_cpu, sent
from .training import train_steps


def parallel_layers(model: nn.Module, rank: Rank, *, only: bool = False) -> nn.Module:
    """Split the first linear layer by its outputs, the second by its inputs.

    ``only`` these are trained: GradScaler refuses a mixture of sharded and whole gradients.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(rank.device.type, (rank.size,))
    for parameter in model[0].parameters() if only else ():  # type: ignore[index]
        parameter.requires_grad_(requires_grad=False)
    return parallelize_module(model, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})


def _sequence_parallel(model: nn.Module, rank: Rank) -> nn.Module:
    """Split the layers likewise, and let each rank normalise its own rows."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    plan = {
        "0": SequenceParallel(sequence_dim=0),
        "1": ColwiseParallel(input_layouts=Shard(0)),
        "3": RowwiseParallel(output_layouts=Replicate()),
    }
    return parallelize_module(model, init_device_mesh(rank.device.type, (rank.size,)), plan)


def step(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one step on the whole batch, which every rank has, or on each rank's rows of it in the first layer."""
    instance = realised(settings["seed"], rank.device)
    sequences = settings.get("sequences", False)
    parallel = (_sequence_parallel if sequences else parallel_layers)(instance.model, rank)
    rows = dict(instance.batch)
    if sequences:
        rows["inputs"] = rows_of(rank.number, rows)["inputs"]
    with recorded_collectives() as calls:
        outputs = backward(parallel, rows, lambda: rank.autocast(low_dtype(settings)))
    return {
        "loss": float(outputs["loss"]),
        "output": dtype_name(outputs["logits"].dtype),
        "logits": on_cpu({"logits": full(outputs["logits"])})["logits"],
        "sent": sent(calls),
        "gradients": on_cpu(gradients(parallel)),
        "parameters": sorted({dtype_name(p.dtype) for p in parallel.parameters()}),
    }


def train(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train some steps; in the second one the gradient of one rank's shard may overflow."""
    instance = realised(settings["seed"], rank.device)
    parallel = parallel_layers(instance.model, rank, only=settings["only"])
    return train_steps(parallel, instance.batch, rank.device, low_dtype(settings), settings)


WORDS, EACH = 16, 8


def table() -> Tensors:
    """Return an embedding table, token indices in a different order, and the factors of the outputs."""
    generator = torch.Generator().manual_seed(3)
    return {
        "weight": torch.randn(WORDS, EACH, generator=generator),
        "words": torch.randperm(WORDS, generator=generator),
        "factors": torch.randn(WORDS, EACH, generator=generator),
    }


def embed(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Look up a table split by tokens, and one split by columns, in a region: outputs and gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(rank.device.type, (rank.size,))
    styles: dict[str, Any] = {
        "words": RowwiseParallel(input_layouts=Replicate()),
        "columns": ColwiseParallel(output_layouts=Replicate()),
    }
    results = {}
    for name, style in styles.items():
        tensors = {key: value.to(rank.device) for key, value in table().items()}
        embedding: Any = nn.Embedding  # whose constructors have no types
        model = nn.Sequential(embedding.from_pretrained(tensors["weight"], freeze=False))
        parallel = parallelize_module(model, mesh, {"0": style})
        with rank.autocast(low_dtype(settings)):
            outputs = parallel(tensors["words"])
        torch.autograd.backward((outputs * tensors["factors"]).sum())
        results[name] = on_cpu({"outputs": outputs, "gradient": gradients(parallel)["0.weight"]})
    return results
