"""Functions that run on each rank: ``loss_parallel``, a loss of logits that are sharded by classes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as f

from pytest_amp.distributed import Rank
from pytest_amp.precision import dtype_name

from .models import Tensors, gradients, realised
from .programs import dtype_of, full, low_dtype, on_cpu

ROWS, CLASSES, IGNORED = 24, 16, -100
REDUCTIONS = ("mean", "sum", "none")


def full_batch() -> Tensors:
    """Return logits that no lower dtype represents, far from zero: exponentials need their maximum subtracted."""
    generator = torch.Generator().manual_seed(5)
    logits = 40 + 8 * torch.randn(ROWS, CLASSES, generator=generator)
    targets = torch.arange(ROWS) % CLASSES
    targets[3] = IGNORED
    return {"logits": logits, "targets": targets}


def loss(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the loss with each reduction, of logits in ``logits``, in a region or not: values and gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.parallel import loss_parallel

    mesh = init_device_mesh(rank.device.type, (rank.size,))
    batch = {name: value.to(rank.device) for name, value in full_batch().items()}
    results: dict[str, Any] = {}
    for reduction in REDUCTIONS:
        logits = distribute_tensor(batch["logits"].to(dtype_of(settings["logits"])), mesh, [Shard(1)]).requires_grad_()
        region: Any = rank.autocast(low_dtype(settings)) if settings["region"] else contextlib.nullcontext()
        with loss_parallel():
            with region:
                value = f.cross_entropy(logits, batch["targets"], reduction=reduction)
            torch.autograd.backward(value.sum())
        assert logits.grad is not None
        results[reduction] = on_cpu({"loss": value, "gradient": logits.grad})
    return results


def step(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one step of a model whose last layer is split by classes, on the whole batch, with the loss of its parts."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

    instance = realised(settings["seed"], rank.device)
    mesh = init_device_mesh(rank.device.type, (rank.size,))
    model: nn.Module = parallelize_module(instance.model, mesh, {"3": ColwiseParallel(use_local_output=False)})
    with loss_parallel():
        with rank.autocast(low_dtype(settings)):
            logits = model(instance.batch["inputs"])
            value = f.cross_entropy(logits.float(), instance.batch["targets"])
        torch.autograd.backward(value)
    return {
        "logits": dtype_name(logits.dtype),
        "loss": float(full(value.detach())),
        "gradients": on_cpu(gradients(model)),
    }
