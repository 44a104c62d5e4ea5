"""Distances between tensors, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch


def is_inexact(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has floating-point or complex values, which are rounded, unlike integers."""
    return tensor.is_floating_point() or tensor.is_complex()


def real_parts(tensor: torch.Tensor) -> torch.Tensor:
    """Return complex values as pairs of real values in a last dimension, a view if possible; others unchanged."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


#: Layouts that have no strides.
_SPARSE = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a sparse tensor of any layout as a strided one; other tensors unchanged."""
    return tensor.to_dense() if tensor.layout in _SPARSE else tensor


def stored_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return the stored values of a sparse tensor, a view unless coalesced first; a strided tensor unchanged."""
    stored = tensor.detach()
    stored = stored.coalesce() if stored.layout is torch.sparse_coo else stored
    return stored.values() if stored.layout in _SPARSE else stored


def exact_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Copy ``tensor`` to float64 on the CPU, to compare values of any back end; complex values become pairs."""
    return real_parts(dense(tensor.detach()).to("cpu")).to(torch.float64)


def norm(tensor: torch.Tensor) -> float:
    """Return the L2 norm, in float64."""
    return float(torch.linalg.vector_norm(exact_copy(tensor)))


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the L2 norm of ``a - b``, inf in place of NaN. Raises ValueError if the shapes differ."""
    if a.shape != b.shape:
        raise ValueError(f"shapes {list(a.shape)} and {list(b.shape)} differ")
    value = float(torch.linalg.vector_norm(exact_copy(a) - exact_copy(b)))
    return math.inf if math.isnan(value) else value


def exceeds(error: float, allowed: float) -> bool:
    """Return whether ``error`` is larger than ``allowed``; True if either is not finite."""
    return not error <= allowed < math.inf


def relative_error(a: torch.Tensor, b: torch.Tensor, *, scale: float | None = None) -> float:
    """Return E(a, b): the L2 norm of ``a - b`` over that of ``b``, or over ``scale`` if it is given.

    Without a scale, the error against a zero tensor is 0 if ``a`` is zero, too, else infinite.
    """
    size = norm(b) if scale is None else scale
    far = distance(a, b)
    if size == 0:
        return 0.0 if far == 0 else math.inf
    return far / size


#: Number of distinct values that are not representable by chance, and of values to check before sorting all.
ENOUGH, FIRST = 64, 4096


def is_hollow(tensor: torch.Tensor, dtype: torch.dtype) -> bool | None:
    """Return whether a wide tensor has only values that the low ``dtype`` represents, so it must have been rounded.

    For a complex tensor this applies to every real and imaginary part. The decision needs at least 64 distinct finite
    values other than zero; for fewer, which may be representable by chance, the result is None.
    """
    values = finite_values(tensor)
    if not any(torch.unique(some).numel() >= ENOUGH for some in (values[:FIRST], values)):
        return None
    return all_in(values, dtype)


def hollow_dtype(tensor: torch.Tensor, dtypes: Iterable[torch.dtype]) -> torch.dtype | None:
    """Return the first of ``dtypes`` for which ``is_hollow`` is True; None if there is none.

    Most tensors are decided by their first values, without sorting them.
    """
    values = real_parts(stored_values(tensor)).flatten()
    if values.numel() < ENOUGH:
        return None
    first = values[:FIRST].nan_to_num(0.0, math.inf, -math.inf)
    return next((dtype for dtype in dtypes if all_in(first, dtype) and is_hollow(tensor, dtype)), None)


def finite_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return the finite values of a tensor other than zero, flat; for a sparse tensor those that it stores."""
    values = real_parts(stored_values(tensor)).flatten()
    return values[values.isfinite() & (values != 0)]


def all_in(values: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether ``dtype`` represents all of ``values``."""
    return bool((values == values.to(dtype).to(values.dtype)).all())
