"""Functions that run on each rank: DistributedDataParallel under autocast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pytest_amp.distributed import Rank
from pytest_amp.precision import dtype_name
from pytest_amp.torch_private import recorded_collectives, small_first_bucket

from .hooks import registered
from .models import HIDDEN, LATER, WIDTH, Keeping, backward, evaluated, gradients, realised, rows_of, state_of
from .programs import low_dtype, model_and_rows, on_cpu, sent


def wrapped(model: nn.Module, rank: Rank, options: Mapping[str, Any]) -> Any:
    """Return the model in DDP; a small ``bucket_cap_mb`` counts from the first bucket on."""
    from torch.nn.parallel import DistributedDataParallel

    devices = None if rank.device.type == "cpu" else [rank.device]
    limit = int(options.get("bucket_cap_mb", 25) * 2**20)
    with small_first_bucket(min(limit, 2**20)):
        return DistributedDataParallel(model, device_ids=devices, **options)


_sync_batch_norm: Any = nn.SyncBatchNorm  # has no types


def step(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one step: gradients, losses, calls, and whether autocast was on where the model computed."""
    model, rows = model_and_rows(rank, settings)
    states: list[tuple[bool, str]] = []
    model[1].register_forward_hook(  # type: ignore[index]
        lambda _module, _inputs, output: states.append(
            (torch.is_autocast_enabled(rank.device.type), dtype_name(output.dtype))
        )
    )
    parallel = wrapped(model, rank, settings.get("options", {}))
    if settings.get("hook"):
        parallel.register_comm_hook(*registered(settings["hook"]))
    with recorded_collectives() as calls:
        outputs = backward(parallel, rows, lambda: rank.autocast(low_dtype(settings)))
    return {
        "loss": float(outputs["loss"]),
        "logits": outputs["logits"].cpu(),
        "gradients": on_cpu(gradients(parallel)),
        "sent": sent(calls),
        "autocast": [list(state) for state in states],
    }


def evaluate(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run a training step and an evaluation in each grad mode; return the evaluation's calls, too."""
    model, rows = model_and_rows(rank, settings)
    parallel = wrapped(model, rank, {})
    region = lambda: rank.autocast(low_dtype(settings))  # noqa: E731
    backward(parallel, rows, region)
    with recorded_collectives() as calls:
        logits = evaluated(parallel, rows, region)
    return {"logits": on_cpu(logits), "sent": sent(calls)}


def large_gradients(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce gradients of a given size on every rank, through a compression hook."""
    model = nn.Linear(4, 4, bias=False).to(rank.device)
    parallel = wrapped(model, rank, {})
    if settings["hook"]:
        parallel.register_comm_hook(*registered(settings["hook"]))
    torch.autograd.backward(parallel(torch.full((1, 4), float(settings["size"]), device=rank.device)).sum())
    return {"gradients": on_cpu(gradients(parallel))}


def low_model(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce gradients of a low-precision model: the dtypes of its buckets, and no overflow in the sum."""
    model = nn.Linear(4, 4, bias=False).to(rank.device, low_dtype(settings))
    parallel = wrapped(model, rank, {})
    inputs = torch.full((1, 4), float(settings["size"]), device=rank.device, dtype=low_dtype(settings))
    with recorded_collectives() as calls:
        torch.autograd.backward(parallel(inputs).float().sum())
    return {"gradients": on_cpu(gradients(parallel)), "sent": sent(calls)}


def statistics(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run a batch norm under autocast: each rank's buffers after two steps; rank 0's go to all before each forward."""
    instance = realised(settings["seed"], rank.device)
    torch.manual_seed(settings["seed"])
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.BatchNorm1d(HIDDEN)).to(rank.device)
    if settings["synchronised"]:
        model = _sync_batch_norm.convert_sync_batchnorm(model)
    parallel = wrapped(model, rank, {})
    rows = rows_of(rank.number, instance.batch)["inputs"]
    with recorded_collectives() as calls:
        for _ in range(2):
            with rank.autocast(low_dtype(settings)):
                outputs = parallel(rows)
            torch.autograd.backward(outputs.float().square().mean())
    return {"buffers": on_cpu(dict(model.named_buffers())), "sent": sent(calls), "outputs": outputs.detach().cpu()}


def state(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Wrap a module with values of each rank: the values after DDP's first broadcast, and after later changes."""
    model = Keeping(settings["seed"], rank.number).to(rank.device)
    parallel = wrapped(model, rank, {})
    entries = on_cpu(model.state_dict())
    later = state_of(settings["seed"], rank.number + LATER)
    for name, buffer in model.named_buffers():
        buffer.copy_(later[name])
    rows = realised(settings["seed"], rank.device).batch["inputs"]
    with recorded_collectives() as calls, rank.autocast(low_dtype(settings)):
        parallel(rows)
    return {"made": entries, "buffers": on_cpu(dict(model.named_buffers())), "sent": sent(calls)}


def train(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train for some steps in the usual way: losses, scales, weights, and dtypes of the retained state."""
    from .training import train_steps

    model, rows = model_and_rows(rank, settings)
    if settings.get("overflow"):
        # Values on one rank only: the other ranks receive them through the reduction.
        rows = {**rows, "overflow": torch.tensor(rank.number == 1)}
    parallel = wrapped(model, rank, settings.get("options", {}))
    return train_steps(parallel, rows, rank.device, low_dtype(settings), settings)
