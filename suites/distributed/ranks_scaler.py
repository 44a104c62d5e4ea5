"""Functions that run on each rank: scalers whose gradients overflow on one rank only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pytest_amp.distributed import Rank

from .programs import full, model_and_rows
from .ranks_fsdp import sharded, wrapped
from .ranks_tensor import parallel_layers


def _model(rank: Rank, settings: Mapping[str, Any]) -> nn.Module:
    model, _ = model_and_rows(rank, settings)
    kind = settings["parallel"]
    if kind == "fully_shard":
        return sharded(model, rank, {})  # type: ignore[no-any-return]
    if kind == "fsdp":
        return wrapped(model, rank, {})  # type: ignore[no-any-return]
    if kind == "tensor":
        return parallel_layers(model, rank, only=True)
    assert kind == "none"
    return model


def _scaler(rank: Rank, settings: Mapping[str, Any]) -> Any:
    keywords: Any = {"init_scale": 8.0, "growth_interval": settings.get("growth_interval", 100)}
    if settings["scaler"] == "sharded":
        import torch.distributed as dist
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        return ShardedGradScaler(device=rank.device.type, process_group=dist.group.WORLD, **keywords)
    return torch.amp.GradScaler(rank.device.type, **keywords)


def _local(gradient: Any) -> torch.Tensor:
    part: torch.Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return part


def overflow(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run three iterations; in the second the shard of one rank gets an inf or NaN after backward.

    Return the scale after each, whether this rank's parameters moved, and the optimizer's count of steps.
    """
    parallel = _model(rank, settings)
    _, rows = model_and_rows(rank, {**settings, "seed": settings["seed"]})
    optimizer = torch.optim.Adam(parallel.parameters(), lr=1e-2, foreach=settings.get("foreach", False))
    scaler = _scaler(rank, settings)
    scales, moved = [], []
    for iteration in range(3):
        optimizer.zero_grad()
        outputs = parallel(rows["inputs"])
        torch.autograd.backward(scaler.scale(full(outputs).square().mean()))
        if iteration == 1 and rank.number == settings["rank"]:
            _spoil(parallel, float(settings["value"]))
        before = [_local(p.detach()).clone() for p in parallel.parameters()]
        if settings.get("unscale"):
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        after = [_local(p.detach()) for p in parallel.parameters()]
        moved.append(any(not torch.equal(a, b) for a, b in zip(before, after, strict=True)))
    steps = {float(state["step"]) for state in optimizer.state.values()}
    finite = all(bool(_local(p.detach()).isfinite().all()) for p in parallel.parameters())
    return {"scales": scales, "moved": moved, "steps": sorted(steps), "finite": finite}


def _spoil(parallel: nn.Module, value: float) -> None:
    """Overwrite the last element of the first gradient of which this rank has a part."""
    parts = (_local(p.grad) for p in parallel.parameters() if p.grad is not None)
    chosen = next(part for part in parts if part.numel())
    with torch.no_grad():
        chosen.view(-1)[-1:] = value


def scales(rank: Rank, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run iterations for which ``overflows`` names the rank that overflows, if any: the scale after each.

    Half way the scaler is saved, and a new one continues with its state.
    """
    parallel = _model(rank, settings)
    _, rows = model_and_rows(rank, settings)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-3, foreach=False)
    scaler = _scaler(rank, settings)
    history = []
    plan = settings["overflows"]
    for iteration, at in enumerate(plan):
        if iteration == len(plan) // 2:
            state, scaler = scaler.state_dict(), _scaler(rank, {**settings, "growth_interval": 100})
            scaler.load_state_dict(state)
        optimizer.zero_grad()
        torch.autograd.backward(scaler.scale(full(parallel(rows["inputs"])).square().mean()))
        if at == rank.number:
            _spoil(parallel, float("inf"))
        scaler.step(optimizer)
        scaler.update()
        history.append(scaler.get_scale())
    return {"scales": history, "state": scaler.state_dict()}
