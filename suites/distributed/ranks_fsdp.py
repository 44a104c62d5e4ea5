"""Functions that run on each rank: FSDP2's ``fully_shard`` and FSDP1's wrapper, with mixed-precision policies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from pytest_amp.distributed import Rank
from pytest_amp.precision import dtype_name
from pytest_amp.torch_private import recorded_collectives

from .models import Tensors, backward, evaluated, gradients, loss, plain, realised
from .programs import dtype_of, low_dtype, model_and_rows, on_cpu, sent
from .training import train_steps


def mesh_of(rank: Rank) -> Any:
    """Return a one-dimensional device mesh of all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(rank.device.type, (rank.size,))


def sharded(model: nn.Module, rank: Rank, policy: Mapping[str, Any]) -> Any:
    """Shard each linear layer as its own parameter group; the root's group has the remaining parameters."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = mesh_of(rank)
    dtypes: Any = {name: dtype_of(policy.get(name)) for name in ("param_dtype", "reduce_dtype", "output_dtype")}
    rules = MixedPrecisionPolicy(**dtypes)
    for layer in model.children():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=rules)
    fully_shard(model, mesh=mesh, mp_policy=rules)
    return model


def wrapped(model: nn.Module, rank: Rank, policy: Mapping[str, Any]) -> Any:
    """Wrap the model in FSDP1 as one flat parameter; ``named_parameters`` returns the original parameters."""
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

    dtypes: Any = {name: dtype_of(policy.get(name)) for name in ("param_dtype", "reduce_dtype", "buffer_dtype")}
    mixed_precision = MixedPrecision(**dtypes) if any(dtypes.values()) else None
    return FullyShardedDataParallel(model, mixed_precision=mixed_precision, device_id=rank.device, use_orig_params=True)


@contextlib.contextmanager
def _recorded_dtypes(model: nn.Module) -> Iterator[dict[str, str]]:
    """Record the dtypes of a linear layer's weight, input and output."""
    dtypes: dict[str, str] = {}

    def note(layer: Any, inputs: Any, output: Any) -> None:
        dtypes.update(
            weight=dtype_name(layer.weight.dtype), input=dtype_name(inputs[0].dtype), output=dtype_name(output.dtype)
        )

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    handle = layers[0].register_forward_hook(note, prepend=True)
    try:
        yield dtypes
    finally:
        handle.remove()


def step(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one step under FSDP2's policy, or under autocast without one."""
    model, rows = model_and_rows(rank, settings)
    parallel = sharded(model, rank, settings["policy"])
    return {
        **_stepped(parallel, rows, rank, settings),
        "gradients": on_cpu(gradients(parallel)),
        "shards": sorted({dtype_name(p.grad.to_local().dtype) for p in parallel.parameters()}),
    }


def step_of_one_unit(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one step under FSDP1's policy; gradients are gathered from the flat parameter."""
    model, rows = model_and_rows(rank, settings)
    parallel = wrapped(model, rank, settings["policy"])
    return {
        **_stepped(parallel, rows, rank, settings),
        "gradients": gathered(parallel),
        "shards": sorted({dtype_name(p.grad.dtype) for p in parallel.parameters() if p.grad is not None}),
    }


def _stepped(parallel: nn.Module, rows: Any, rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run one step, and return the observations that FSDP1 and FSDP2 share."""
    with recorded_collectives() as calls, _recorded_dtypes(parallel) as layer_dtypes:
        outputs = backward(parallel, rows, lambda: rank.autocast(low_dtype(settings), enabled=settings["region"]))
    return {
        "loss": float(outputs["loss"]),
        "output": dtype_name(outputs["logits"].dtype),
        "layer": layer_dtypes,
        "sent": sent(calls),
        "parameters": sorted({dtype_name(p.dtype) for p in parallel.parameters()}),
    }


def gathered(parallel: Any) -> Tensors:
    """Return the unsharded gradients of FSDP1's flat parameter by the original names."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    with FullyShardedDataParallel.summon_full_params(parallel, with_grads=True):
        return on_cpu({plain(name): p.grad for name, p in parallel.named_parameters()})


class _Tabled(nn.Module):
    """Module with a float and an integer buffer; a batch norm would not do, since FSDP1 exempts it from the policy."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("table", torch.rand(8))
        self.register_buffer("counter", torch.zeros((), dtype=torch.int64))
        self.seen: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = self.get_buffer("table")
        self.seen.append(dtype_name(table.dtype))
        shifted: torch.Tensor = self.layer(x) + table.to(x.dtype)
        return shifted


def buffers(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the dtypes of the buffers inside ``forward`` under FSDP1 or FSDP2 (``unit``)."""
    torch.manual_seed(settings["seed"])
    model = _Tabled().to(rank.device)
    parallel = {"FSDP1": wrapped, "FSDP2": sharded}[settings["unit"]](model, rank, settings["policy"])
    parallel(torch.randn(4, 8, device=rank.device))
    return {"seen": model.seen, "counter": dtype_name(model.get_buffer("counter").dtype)}


def evaluate(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate in each grad mode under FSDP1 or FSDP2 (``unit``)."""
    model, rows = model_and_rows(rank, settings)
    shard = {"FSDP1": wrapped, "FSDP2": sharded}[settings["unit"]]
    parallel = shard(model, rank, settings["policy"])
    logits = evaluated(parallel, rows, lambda: rank.autocast(low_dtype(settings), enabled=settings["region"]))
    return {"logits": on_cpu(logits)}


def train(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train some steps with FSDP2; with ``overflow``, the loss of rank 1 overflows."""
    model, rows = model_and_rows(rank, settings)
    if settings.get("overflow"):
        rows = {**rows, "overflow": torch.tensor(rank.number == 1)}
    parallel = sharded(model, rank, settings["policy"])
    return train_steps(parallel, rows, rank.device, low_dtype(settings), settings)


def train_one_unit(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train some steps with FSDP1 and its ShardedGradScaler; weights stay sharded."""
    import torch.distributed as dist
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    model, rows = model_and_rows(rank, settings)
    if settings.get("overflow"):
        rows = {**rows, "overflow": torch.tensor(rank.number == 1)}
    keywords: Any = {"init_scale": 256.0, "growth_interval": 3, "process_group": dist.group.WORLD}
    scaler = ShardedGradScaler(device=rank.device.type, **keywords)
    parallel = wrapped(model, rank, settings["policy"])
    return train_steps(parallel, rows, rank.device, low_dtype(settings), settings, scaler)


class _Late(nn.Module):
    """Two layers, the second of which is used only if ``both`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.late = nn.Linear(8, 8), nn.Linear(8, 8)
        self.both = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.always(x)
        return self.late(output) if self.both else output


def used_late(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run two micro-batches with one gradient reduction; the layer ``late`` takes part in the second only."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(settings["seed"])
    model = _Late()
    policy: Any = {name: dtype_of(value) for name, value in settings["policy"].items()}
    parallel: Any = fully_shard(model, mesh=mesh_of(rank), mp_policy=MixedPrecisionPolicy(**policy))
    for half in range(2):
        model.both = half == 1
        parallel.set_requires_gradient_sync(half == 1)
        torch.autograd.backward(parallel(torch.ones(4, 8, device=rank.device)).float().sum())
    return {"gradients": on_cpu(gradients(parallel))}


def with_tensor_parallel(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Combine FSDP2 with tensor parallelism on a two-dimensional mesh; return the all-reduces of backward."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    model, rows = model_and_rows(rank, settings)
    whole = realised(settings["seed"], rank.device).batch
    mesh = init_device_mesh(rank.device.type, (1, rank.size), mesh_dim_names=("data", "tensor"))
    plan = {
        "0": SequenceParallel(sequence_dim=0),
        "1": ColwiseParallel(input_layouts=Shard(0)),
        "3": RowwiseParallel(output_layouts=Replicate()),
    }
    model = parallelize_module(model, mesh["tensor"], plan)
    policy: Any = {name: dtype_of(value) for name, value in settings["policy"].items()}
    parallel: Any = fully_shard(model, mesh=mesh["data"], mp_policy=MixedPrecisionPolicy(**policy))
    # The input is sharded along the sequence up to the first tensor parallel layer; the output is replicated.
    outputs = loss(parallel, {"inputs": rows["inputs"], "targets": whole["targets"]})
    with recorded_collectives() as calls:
        torch.autograd.backward(outputs["loss"])
    return {"sent": sent([call for call in calls if call.kind == "all_reduce"])}


def unfrozen(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Evaluate once with all parameters frozen, then run a training step; return its reduce-scatters."""
    model, rows = model_and_rows(rank, settings)
    parallel = sharded(model, rank, settings["policy"])
    parallel.requires_grad_(requires_grad=False)
    with torch.no_grad():
        parallel(rows["inputs"])
    parallel.requires_grad_(requires_grad=True)
    with recorded_collectives() as calls:
        backward(parallel, rows, contextlib.nullcontext)
    return {"sent": sent([call for call in calls if call.kind == "reduce_scatter"])}
