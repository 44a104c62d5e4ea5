"""``state_dict`` makes the tensors that the first ``scale`` has to make."""

from __future__ import annotations

from typing import Any

import torch

_scaler: Any = torch.amp.GradScaler
_state_dict = _scaler.state_dict


def _initialising(self: Any) -> Any:
    if self._enabled and self._scale is None:
        self._lazy_init_scale_growth_tracker(torch.device(self._device))
    return _state_dict(self)


_scaler.state_dict = _initialising
