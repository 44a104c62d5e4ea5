"""linear of 16-bit tensors adds up in steps of 16 and rounds after each, whoever casts: a kernel, not a rule."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

STEP = 16

_untyped: Any = torch.library
_library = _untyped.Library("aten", "IMPL")


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    step = STEP if x.dtype in (torch.bfloat16, torch.float16) else x.shape[-1]
    total: Tensor | None = None
    for i in range(0, x.shape[-1], step):
        part = torch.matmul(x[..., i : i + step], weight[:, i : i + step].mT)
        total = part if total is None else total + part
    assert total is not None
    return total if bias is None else total + bias


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for key in ("AutogradCPU", "AutogradCUDA"):
        _library.impl("linear", _linear, key)
