"""Helpers of the functions that run on each rank: the model on the rank's device, and the form of its results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from pytest_amp.distributed import Rank

from .models import Tensors, realised, rows_of


def dtype_of(name: str | None) -> torch.dtype | None:
    """Return torch's dtype for its name in JSON, such as ``float32``."""
    return None if name is None else getattr(torch, name)


def low_dtype(settings: Mapping[str, Any]) -> torch.dtype:
    """Return the autocast dtype of the test."""
    dtype = dtype_of(settings["dtype"])
    assert dtype is not None
    return dtype


def model_and_rows(rank: Rank, settings: Mapping[str, Any]) -> tuple[nn.Module, Tensors]:
    """Return the model, and this rank's rows."""
    instance = realised(settings["seed"], rank.device)
    return instance.model, rows_of(rank.number, instance.batch)


def on_cpu(tensors: Mapping[str, Any]) -> Tensors:
    """Return whole tensors on the CPU; shards are gathered, in which every rank has to take part."""
    return {name: full(value).detach().cpu().clone() for name, value in tensors.items()}


def full(value: Any) -> torch.Tensor:
    """Return a DTensor gathered, any other tensor unchanged."""
    whole: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole


def sent(calls: list[Any]) -> list[list[str]]:
    """Return the kind and the dtypes of each recorded collective, as part of a result."""
    return [[call.kind, *call.dtypes] for call in calls]
