"""Copy a case to a wider dtype, for a model with low-precision tensors that runs only inside an autocast region."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from pytest_amp.cases import Case, map_tensors


def widened(case: Case) -> Case:
    """Return the case with float32 copies of its low-precision parameters, buffers and batch: the same values."""
    return replace(case, build=lambda: _float32_model(case.build), batch=lambda: map_tensors(_as_float32, case.batch()))


@contextlib.contextmanager
def float64_in_region(device_type: str) -> Iterator[None]:
    """Enter a region for a float64 copy, which autocast does not cast; new tensors are float64, too.

    ``is_eligible`` in aten/src/ATen/autocast_mode.h excludes float64. A model that queries autocast's state finds it
    enabled, but nothing is cast.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast(device_type):
            yield
    finally:
        torch.set_default_dtype(before)


def _float32_model(build: Callable[[], torch.nn.Module]) -> Any:
    model = build()
    if isinstance(model, torch.nn.Module):  # otherwise the case reports the wrong type
        for tensor in (*model.parameters(), *model.buffers()):
            if _is_low(tensor):
                tensor.data = tensor.data.float()
    return model


def _as_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().float().requires_grad_(tensor.requires_grad) if _is_low(tensor) else tensor


def _is_low(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype.itemsize < torch.float32.itemsize
