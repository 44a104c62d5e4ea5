"""What planted defects break kernels with: their own in place of the device's, below autocast, whoever casts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from on_device import DEVICE

_untyped: Any = torch.library
_LIBRARY = _untyped.Library("aten", "IMPL")

LOW = (torch.bfloat16, torch.float16)


def replace_kernel(operator: str, kernel: Callable[..., Any]) -> None:
    """Run ``kernel`` as the kernel of ``operator`` (``mean.dim``); it must not call that operator itself.

    On a CPU, and on CUDA where there is one.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that there is a kernel already
        for device in ("CPU", "CUDA") if torch.version.cuda else ("CPU",):
            _LIBRARY.impl(operator, kernel, device)


def truncate_conversions(where: Callable[[torch.Tensor], bool] = lambda _: True) -> None:
    """Let tensors that ``where`` is true of lose their lower half, from float32 to bf16 on the device under test."""

    def to_copy(
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
        if dtype is torch.bfloat16 and x.dtype is torch.float32 and where(x):
            halves = x.contiguous().view(torch.int16).clone()
            halves.view(-1)[::2] = 0  # the lower halves, where the lowest byte comes first
            x = halves.view(torch.float32)
        return made.copy_(x, non_blocking=non_blocking)

    _LIBRARY.impl("_to_copy", to_copy, DEVICE.upper())
