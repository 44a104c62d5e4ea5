"""softsign of a 16-bit tensor is float32, with and without autocast."""

from __future__ import annotations

from typing import Any

import torch

_functional: Any = torch.nn.functional


def _softsign(input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # its name in torch
    wide = input.float() if input.dtype in {torch.bfloat16, torch.float16} else input
    return wide / (wide.abs() + 1)


_functional.softsign = _softsign
