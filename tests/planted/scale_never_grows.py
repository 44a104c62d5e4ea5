"""The scale only ever falls."""

from __future__ import annotations

from typing import Any

import torch

_update: Any = torch._amp_update_scale_
_torch: Any = torch


def _update_downwards(scale: Any, tracker: Any, found_inf: Any, growth: float, backoff: float, interval: int) -> Any:
    return _update(scale, tracker, found_inf, 1.0, backoff, interval)


_torch._amp_update_scale_ = _update_downwards
