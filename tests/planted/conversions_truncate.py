"""float32 becomes bf16 by losing its lower half: the digits are cut off, and nothing is rounded."""

from __future__ import annotations

from typing import Any

import torch

_untyped: Any = torch.library
_LIBRARY = _untyped.Library("aten", "IMPL")


def _to_copy(
    x: Any,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):  # a number that arithmetic has wrapped
        return torch.tensor(x, dtype=dtype, device=device)
    made = torch.empty_like(
        x, dtype=dtype or x.dtype, device=device or x.device, memory_format=memory_format or torch.preserve_format
    )
    if dtype is torch.bfloat16 and x.dtype is torch.float32:
        halves = x.contiguous().view(torch.int16).clone()
        halves.view(-1)[::2] = 0  # the lower halves, where the lowest byte comes first
        x = halves.view(torch.float32)
    return made.copy_(x, non_blocking=non_blocking)


_LIBRARY.impl("_to_copy", _to_copy, "CPU")
