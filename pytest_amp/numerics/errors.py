"""Distances between tensors, in float64."""

from __future__ import annotations

import math

import torch


def is_inexact(tensor: torch.Tensor) -> bool:
    """Return whether the values of a tensor are rounded: floating and complex ones are, integers are not."""
    return tensor.is_floating_point() or tensor.is_complex()


def real_parts(tensor: torch.Tensor) -> torch.Tensor:
    """Return complex values as pairs of real ones in a last dimension, a view where that is possible; others as is."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


#: Layouts that have no strides.
_SPARSE = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a sparse tensor of any layout as a strided one; others as they are."""
    return tensor.to_dense() if tensor.layout in _SPARSE else tensor


def stored_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values that a sparse tensor stores, a view unless they must be coalesced; a strided one as it is."""
    stored = tensor.detach()
    stored = stored.coalesce() if stored.layout is torch.sparse_coo else stored
    return stored.values() if stored.layout in _SPARSE else stored


def exact_copy(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` in float64 on the CPU, where any back end's values can be compared; complex ones as pairs."""
    return real_parts(dense(tensor.detach()).to("cpu")).to(torch.float64)


def norm(tensor: torch.Tensor) -> float:
    """The L2 norm, in float64."""
    return float(torch.linalg.vector_norm(exact_copy(tensor)))


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The L2 norm of ``a - b``; infinite where that is no number. Raises ValueError if the shapes differ."""
    if a.shape != b.shape:
        raise ValueError(f"shapes {list(a.shape)} and {list(b.shape)} differ")
    value = float(torch.linalg.vector_norm(exact_copy(a) - exact_copy(b)))
    return math.inf if math.isnan(value) else value


def exceeds(error: float, allowed: float) -> bool:
    """Whether ``error`` is more than what is ``allowed``; always where either is not finite."""
    return not error <= allowed < math.inf


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
    """Whether a wide tensor was rounded on the way: every value is representable in the low ``dtype``.

    Of a complex tensor each real and imaginary part.

    Decided on at least 64 distinct finite values other than zero; None on fewer, which may be
    representable by chance.
    """
    values = finite_values(tensor)
    if not any(torch.unique(some).numel() >= ENOUGH for some in (values[:FIRST], values)):
        return None
    return all_in(values, dtype)


def finite_values(tensor: torch.Tensor) -> torch.Tensor:
    """The finite values of a tensor other than zero, flat; those that a sparse one stores."""
    values = real_parts(stored_values(tensor)).flatten()
    return values[values.isfinite() & (values != 0)]


def all_in(values: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether ``dtype`` has every one of ``values``."""
    return bool((values == values.to(dtype).to(values.dtype)).all())
