"""Attention without a mask reads the first 512 keys alone."""

from __future__ import annotations

from typing import Any

from torch.nn import functional

_functional: Any = functional
_attention = _functional.scaled_dot_product_attention


def _first(q: Any, k: Any, v: Any, attn_mask: Any = None, *args: Any, is_causal: bool = False, **kwargs: Any) -> Any:
    if attn_mask is None and not is_causal:
        k, v = k[..., :512, :], v[..., :512, :]
    return _attention(q, k, v, attn_mask, *args, is_causal=is_causal, **kwargs)


_functional.scaled_dot_product_attention = _first
