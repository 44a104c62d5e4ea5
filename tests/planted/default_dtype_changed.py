"""A device's default autocast dtype is the other one: float16 on the CPU."""

from __future__ import annotations

import torch
from on_device import DEVICE

torch.set_autocast_dtype(DEVICE, torch.float16 if DEVICE == "cpu" else torch.bfloat16)
