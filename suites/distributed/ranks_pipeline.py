"""Programs of ranks: a model in stages, one on each rank, through which micro-batches go."""

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
    made = realised(settings["seed"], rank.device)
    layers = list(made.model.children())
    own = nn.Sequential(*(layers[:2] if rank.number == 0 else layers[2:]))
    got: list[str] = []
    own.register_forward_pre_hook(lambda _module, inputs: got.append(dtype_name(inputs[0].dtype)))
    stage = untyped.PipelineStage(own, rank.number, rank.size, rank.device)
    schedule = getattr(untyped, settings["schedule"])(stage, MICRO, loss_fn=criterion)
    losses: list[torch.Tensor] = []
    with rank.autocast(low_dtype(settings)):
        if rank.number == 0:
            schedule.step(made.batch["inputs"])
        else:
            schedule.step(target=made.batch["targets"], losses=losses)
    names = {id(p): name for name, p in made.model.named_parameters()}
    found = {names[id(p)]: p.grad for p in own.parameters() if p.grad is not None}
    return {"gradients": on_cpu(found), "losses": [float(each) for each in losses], "got": sorted(set(got))}
