"""What ranks share: the model on their device, and the form in which they answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pytest_amp.distributed import Rank

from .models import Tensors, realised, rows_of


def dtype_of(name: str | None) -> torch.dtype | None:
    """``float32`` as JSON has it, as torch's."""
    return None if name is None else getattr(torch, name)


def low_dtype(settings: Mapping[str, Any]) -> torch.dtype:
    """The autocast dtype of the test."""
    dtype = dtype_of(settings["dtype"])
    assert dtype is not None
    return dtype


def own(rank: Rank, settings: Mapping[str, Any]) -> tuple[nn.Module, Tensors]:
    """The model, and this rank's rows."""
    made = realised(settings["seed"], rank.device)
    return made.model, rows_of(rank.number, made.batch)


def on_cpu(tensors: Mapping[str, Any]) -> Tensors:
    """Whole tensors on the CPU: those that are in shards are gathered, which every rank has to do."""
    return {name: full(value).detach().cpu().clone() for name, value in tensors.items()}


def full(value: Any) -> torch.Tensor:
    """A DTensor gathered, any other as it is."""
    whole: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole


def sent(calls: list[Any]) -> list[list[str]]:
    """Collectives as answers have them: kind and dtypes."""
    return [[call.kind, *call.dtypes] for call in calls]
