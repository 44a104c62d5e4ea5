"""Functions that run on each rank: pipeline parallelism, with one stage of the model on each rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as f

from pytest_amp.distributed import Rank
from pytest_amp.precision import dtype_name

from .models import realised
from .programs import low_dtype, on_cpu

MICRO = 3


def criterion(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss of a micro-batch's logits, whatever their dtype."""
    return f.cross_entropy(logits.float(), targets)


def step(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run all micro-batches forward and backward: gradients of this rank's layers, losses, and inputs of its stage."""
    from torch.distributed import pipelining

    untyped: Any = pipelining
    instance = realised(settings["seed"], rank.device)
    layers = list(instance.model.children())
    stage_layers = nn.Sequential(*(layers[:2] if rank.number == 0 else layers[2:]))
    got: list[str] = []
    stage_layers.register_forward_pre_hook(lambda _module, inputs: got.append(dtype_name(inputs[0].dtype)))
    stage = untyped.PipelineStage(stage_layers, rank.number, rank.size, rank.device)
    schedule = getattr(untyped, settings["schedule"])(stage, MICRO, loss_fn=criterion)
    losses: list[torch.Tensor] = []
    with rank.autocast(low_dtype(settings)):
        if rank.number == 0:
            schedule.step(instance.batch["inputs"])
        else:
            schedule.step(target=instance.batch["targets"], losses=losses)
    names = {id(p): name for name, p in instance.model.named_parameters()}
    stage_gradients = {names[id(p)]: p.grad for p in stage_layers.parameters() if p.grad is not None}
    return {"gradients": on_cpu(stage_gradients), "losses": [float(value) for value in losses], "got": sorted(set(got))}
