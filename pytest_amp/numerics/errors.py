"""Distances between tensors, in float64."""

from __future__ import annotations

import math

import torch


def exact_copy(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` in float64 on the CPU, where any back end's values can be compared; complex ones as pairs."""
    value = tensor.detach().to("cpu")
    return (torch.view_as_real(value) if value.is_complex() else value).to(torch.float64)


def norm(tensor: torch.Tensor) -> float:
    """The L2 norm, in float64."""
    return float(torch.linalg.vector_norm(exact_copy(tensor)))


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The L2 norm of ``a - b``; infinite where that is no number. Raises ValueError if the shapes differ."""
    if a.shape != b.shape:
        raise ValueError(f"shapes {list(a.shape)} and {list(b.shape)} differ")
    value = float(torch.linalg.vector_norm(exact_copy(a) - exact_copy(b)))
    return math.inf if math.isnan(value) else value


def relative_error(a: torch.Tensor, b: torch.Tensor, *, scale: float | None = None) -> float:
    """E(a, b): the L2 norm of ``a - b`` over that of ``b``, or over ``scale`` where ``b`` vanishes.

    Without a scale, the error against a zero tensor is 0 if ``a`` is zero, too, else infinite.
    """
    size = norm(b) if scale is None else scale
    far = distance(a, b)
    if size == 0:
        return 0.0 if far == 0 else math.inf
    return far / size


#: Distinct values that are not representable by chance, and how many values are looked at before all are sorted.
ENOUGH, FIRST = 64, 4096


def is_hollow(tensor: torch.Tensor, dtype: torch.dtype) -> bool | None:
    """Whether a float32 or float64 tensor was rounded on the way: every value is representable in the low ``dtype``.

    Decided on at least 64 distinct finite values other than zero; None on fewer, which may be
    representable by chance.
    """
    stored = tensor.detach()
    values = stored.coalesce().values().flatten() if stored.layout is torch.sparse_coo else stored.flatten()
    values = values[values.isfinite() & (values != 0)]
    if not any(torch.unique(some).numel() >= ENOUGH for some in (values[:FIRST], values)):
        return None
    return bool((values == values.to(dtype).to(values.dtype)).all())
