"""A short training with a GradScaler, the same in a rank and in one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pytest_amp.precision import dtype_name

from .models import SIZE, Tensors, loss, plain, rows_of
from .programs import full

STEPS = 4


def _scaler(device: torch.device, settings: Mapping[str, Any], scaler: Any = None) -> Any:
    if scaler is not None:
        return scaler
    return torch.amp.GradScaler(device.type, init_scale=settings.get("scale", 256.0), growth_interval=3)


def _adamw(model: nn.Module, settings: Mapping[str, Any]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=settings.get("foreach", False))


def _loss_factor(step: int, rows: Mapping[str, torch.Tensor]) -> float:
    """Return the factor of the loss: infinity in the second step of a rank that overflows, else 1."""
    return float("inf") if step == 1 and bool(rows.get("overflow", False)) else 1.0


def train_steps(  # noqa: PLR0913, PLR0917  # the options of a training
    model: nn.Module,
    rows: Mapping[str, torch.Tensor],
    device: torch.device,
    dtype: torch.dtype,
    settings: Mapping[str, Any],
    scaler: Any = None,
    optimizer: Any = None,
) -> dict[str, Any]:
    """Train ``STEPS`` steps of AdamW, or another optimizer, under autocast (unless settings say ``region`` False)."""
    optimizer = optimizer or _adamw(model, settings)
    scaler = _scaler(device, settings, scaler)
    losses, scales, moved = [], [], []
    for step in range(settings.get("steps", STEPS)):
        before = [full(p).detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype, enabled=settings.get("region", True)):
            outputs = loss(model, rows)
        torch.autograd.backward(scaler.scale(outputs["loss"] * _loss_factor(step, rows)))
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(outputs["loss"].detach()))
        scales.append(scaler.get_scale())
        moved.append(any(not torch.equal(a, full(p)) for a, p in zip(before, model.parameters(), strict=True)))
    return {
        "losses": losses,
        "scales": scales,
        "moved": moved,
        "weights": {plain(name): full(p).detach().cpu().clone() for name, p in model.named_parameters()},
        "kept": _dtypes_of_state(model, optimizer),
    }


def _dtypes_of_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the dtypes of parameters, gradients and floating-point optimizer state."""
    tensors = [*model.parameters(), *(p.grad for p in model.parameters())]
    # A ZeroRedundancyOptimizer has the state of this rank's shard only.
    states = getattr(optimizer, "optim", optimizer).state
    tensors += [value for state in states.values() for value in state.values()]
    dtypes = {t.dtype for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point()}
    return sorted(dtype_name(dtype) for dtype in dtypes)


def train_in_one_process(
    model: nn.Module, batch: Tensors, device: torch.device, dtype: torch.dtype, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Train without ranks: the rows of each rank one after the other, and the mean of their gradients."""
    optimizer = _adamw(model, settings)
    scaler = _scaler(device, settings)
    losses: list[list[float]] = []
    for step in range(settings.get("steps", STEPS)):
        parts, rank_losses = [], []
        for number in range(SIZE):
            rows = rows_of(number, batch)
            if settings.get("overflow"):
                rows["overflow"] = torch.tensor(number == 1)
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype, enabled=settings.get("region", True)):
                outputs = loss(model, rows)
            torch.autograd.backward(scaler.scale(outputs["loss"] * _loss_factor(step, rows)))
            parts.append([p.grad.detach().clone() for p in model.parameters() if p.grad is not None])
            rank_losses.append(float(outputs["loss"].detach()))
        for parameter, first, second in zip(model.parameters(), *parts, strict=True):
            parameter.grad = first / SIZE + second / SIZE
        scaler.step(optimizer)
        scaler.update()
        losses.append(rank_losses)
    return {
        "losses": losses,
        "scale": scaler.get_scale(),
        "weights": {name: p.detach().cpu().clone() for name, p in model.named_parameters()},
        "state": {
            f"{place}.{name}": value.detach().cpu().clone()
            for place, state in optimizer.state_dict()["state"].items()
            for name, value in state.items()
        },
    }
