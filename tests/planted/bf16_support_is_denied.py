"""``torch.cuda.is_bf16_supported`` says no to everybody, on a GPU that computes in bf16, too."""

from __future__ import annotations

from typing import Any

import torch

_cuda: Any = torch.cuda
_cuda.is_bf16_supported = lambda including_emulation=True: False
