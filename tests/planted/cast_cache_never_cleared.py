"""The cast cache outlives its region: the next one computes with the weights of the last."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch
_torch.clear_autocast_cache = lambda: None
