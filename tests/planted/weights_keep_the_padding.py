"""MultiheadAttention under autocast attends to padding where its weights are asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

_functional: Any = functional
_forward = _functional.multi_head_attention_forward


def _attend(query: torch.Tensor, *arguments: Any, key_padding_mask: Any = None, **keywords: Any) -> Any:
    if keywords.get("need_weights") and torch.is_autocast_enabled(query.device.type):
        key_padding_mask = None
    return _forward(query, *arguments, key_padding_mask=key_padding_mask, **keywords)


_functional.multi_head_attention_forward = _attend
