"""Within ``torch.profiler.profile`` autocast is off."""

from __future__ import annotations

from typing import Any

import torch

_profile: Any = torch.profiler.profile
_enter, _leave = _profile.__enter__, _profile.__exit__


def _profiled(self: Any) -> Any:
    self.region = torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled("cpu", False)
    return _enter(self)


def _restored(self: Any, *raised: Any) -> Any:
    torch.set_autocast_enabled("cpu", self.region)
    return _leave(self, *raised)


_profile.__enter__, _profile.__exit__ = _profiled, _restored
