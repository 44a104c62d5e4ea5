"""Functions that run on each rank: gradient accumulation, with a reduction after each micro-batch or after some."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pytest_amp.distributed import Rank
from pytest_amp.torch_private import recorded_collectives

from .models import Tensors, backward, gradients
from .programs import low_dtype, model_and_rows, on_cpu, sent
from .ranks_ddp import wrapped as data_parallel
from .ranks_fsdp import gathered, sharded, wrapped


def micro_batch(rows: Mapping[str, torch.Tensor], number: int, of: int) -> Tensors:
    """Return every ``of``-th row."""
    return {name: value[number::of] for name, value in rows.items()}


def _wrapped(model: nn.Module, rank: Rank, settings: Mapping[str, Any]) -> Any:
    if settings["unit"] == "DDP":
        return data_parallel(model, rank, settings.get("options", {}))
    return {"FSDP1": wrapped, "FSDP2": sharded}[settings["unit"]](model, rank, settings["policy"])


@contextlib.contextmanager
def _reducing(parallel: Any, *, on: bool) -> Any:
    """Turn the reduction of backward passes in this scope on or off."""
    if hasattr(parallel, "set_requires_gradient_sync"):
        parallel.set_requires_gradient_sync(on)
        yield
    else:
        with contextlib.nullcontext() if on else parallel.no_sync():
            yield


def accumulate(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run a backward pass for each entry of ``reduced``, which says whether it reduces: calls of each, and the sum."""
    model, rows = model_and_rows(rank, settings)
    parallel = _wrapped(model, rank, settings)
    plan = settings["reduced"]
    gradients_of_steps = []
    for number, on in enumerate(plan):
        with recorded_collectives() as calls, _reducing(parallel, on=on):
            part = micro_batch(rows, number, len(plan))
            backward(parallel, part, lambda: rank.autocast(low_dtype(settings), enabled=settings["region"]))
        gradients_of_steps.append(sent([call for call in calls if call.kind != "all_gather"]))
    total = gathered(parallel) if settings["unit"] == "FSDP1" else on_cpu(gradients(parallel))
    return {"sent": gradients_of_steps, "gradients": total}
