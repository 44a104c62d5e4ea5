"""What planted defects break kernels with: their own in place of the device's, below autocast, whoever casts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

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
