"""An overflow does not restart the count of clean steps."""

from __future__ import annotations

from typing import Any

import torch

_update: Any = torch._amp_update_scale_
_torch: Any = torch


def _update_and_keep(scale: Any, tracker: Any, found_inf: Any, *rule: Any) -> Any:
    before = tracker.clone()
    _update(scale, tracker, found_inf, *rule)
    if found_inf.item():
        tracker.copy_(before)
    return scale


_torch._amp_update_scale_ = _update_and_keep
