"""``torch.set_autocast_gpu_dtype`` sets the CPU's dtype."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch
_torch.set_autocast_gpu_dtype = lambda dtype: torch.set_autocast_dtype("cpu", dtype)
