"""Scaled matrix products of float8 tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_amp.torch_private.gone import PrivateApiGone

if TYPE_CHECKING:
    import torch


def scaled_product(
    a: torch.Tensor, b: torch.Tensor, scales: tuple[torch.Tensor, torch.Tensor], dtype: torch.dtype
) -> torch.Tensor:
    """Compute ``a @ b`` of float8 matrices, multiplied by both float32 ``scales``.

    The result has ``dtype``; ``b`` is column-major. Raises PrivateApiGone if torch has no ``_scaled_mm``, and
    NotImplementedError if the back end does not implement it.
    """
    import torch

    function: Any = getattr(torch, "_scaled_mm", None)
    if function is None:
        raise PrivateApiGone("torch._scaled_mm")
    result: torch.Tensor = function(a, b, scale_a=scales[0], scale_b=scales[1], out_dtype=dtype)
    return result
