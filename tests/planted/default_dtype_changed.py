"""The CPU's default autocast dtype is float16."""

from __future__ import annotations

import torch
from on_device import DEVICE

torch.set_autocast_dtype(DEVICE, torch.float16)
