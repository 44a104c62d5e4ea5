"""The step counters of fused and capturable optimizers count steps that their kernel skipped."""

from __future__ import annotations

from typing import Any

import torch

_torch: Any = torch
_torch._foreach_sub_ = lambda *args, **kwargs: None
