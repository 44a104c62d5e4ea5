"""The CPU's default autocast dtype is float16."""

from __future__ import annotations

import torch

torch.set_autocast_dtype("cpu", torch.float16)
