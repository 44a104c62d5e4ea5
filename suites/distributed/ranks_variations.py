"""Functions that run on each rank: less common variants of sharding, resharding and recomputation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_amp.distributed import Rank
from pytest_amp.torch_private import recorded_collectives

from .models import backward, gradients
from .programs import dtype_of, low_dtype, model_and_rows, on_cpu, sent
from .ranks_ddp import wrapped as data_parallel
from .ranks_fsdp import gathered, mesh_of


def _recompute(model: nn.Module, *, reentrant: bool) -> None:
    """Recompute each layer's forward pass in backward."""
    for layer in model.children():
        forward = layer.forward

        def again(*args: Any, forward: Any = forward) -> Any:
            return checkpoint(forward, *args, use_reentrant=reentrant)

        layer.forward = again


def _one_unit(model: nn.Module, rank: Rank, settings: Mapping[str, Any]) -> Any:
    """Return FSDP1 in one unit, or with one for each linear layer."""
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    dtypes: Any = {name: dtype_of(value) for name, value in settings["policy"].items() if name != "output_dtype"}
    options = settings["options"]
    keywords: Any = {
        "mixed_precision": MixedPrecision(**dtypes) if any(dtypes.values()) else None,
        "sharding_strategy": ShardingStrategy[options.get("strategy", "FULL_SHARD")],
        "auto_wrap_policy": ModuleWrapPolicy({nn.Linear}) if options.get("each") else None,
    }
    return FullyShardedDataParallel(model, device_id=rank.device, use_orig_params=True, **keywords)


def _units(model: nn.Module, rank: Rank, settings: Mapping[str, Any]) -> Any:
    """Return FSDP2 over ranks or over replicas, with weights that are gathered again in backward or retained."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dtypes: Any = {name: dtype_of(value) for name, value in settings["policy"].items()}
    options = settings["options"]
    copies = init_device_mesh(rank.device.type, (rank.size, 1), mesh_dim_names=("copies", "shards"))
    keywords: Any = {
        "mesh": copies if options.get("copies") else mesh_of(rank),
        "mp_policy": MixedPrecisionPolicy(**dtypes),
        "reshard_after_forward": options.get("reshard", True),
    }
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **keywords)
    return fully_shard(model, **keywords)


def step(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one step: gradients and calls."""
    model, rows = model_and_rows(rank, settings)
    unit, options = settings["unit"], dict(settings["options"])
    if "reentrant" in options:
        _recompute(model, reentrant=options.pop("reentrant"))
    if unit == "DDP":
        parallel = data_parallel(model, rank, options)
    else:
        parallel = {"FSDP1": _one_unit, "FSDP2": _units}[unit](model, rank, settings)
    # A reentrant checkpoint runs backward only through inputs that have gradients.
    rows["inputs"].requires_grad_(settings["options"].get("reentrant", False))
    with recorded_collectives() as calls:
        backward(parallel, rows, lambda: rank.autocast(low_dtype(settings), enabled=settings["region"]))
    step_gradients = gathered(parallel) if unit == "FSDP1" else on_cpu(gradients(parallel))
    dtypes = {p.grad.dtype for p in parallel.parameters() if p.grad is not None}
    return {"gradients": step_gradients, "sent": sent(calls), "float32": dtypes == {torch.float32}}
