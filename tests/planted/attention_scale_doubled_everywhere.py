"""scaled_dot_product_attention doubles its scale in every dtype, float64 included: only a formula can tell."""

from __future__ import annotations

import warnings
from typing import Any

import torch

_untyped: Any = torch.library
_library = _untyped.Library("aten", "IMPL")


def _attention(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs["scale"] = 2 * (kwargs.get("scale") or q.shape[-1] ** -0.5)
    return _original(q, k, v, *args, **kwargs)


_original = torch.ops.aten.scaled_dot_product_attention.default.decompose

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for key in ("AutogradCPU", "AutogradCUDA"):
        _library.impl("scaled_dot_product_attention", _attention, key)
