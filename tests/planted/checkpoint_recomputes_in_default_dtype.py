"""A checkpoint recomputes in the device's default autocast dtype."""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.checkpoint

_checkpoint: Any = torch.utils.checkpoint
_keywords = _checkpoint._get_autocast_kwargs


def _without_dtype(*args: Any, **kwargs: Any) -> Any:
    return tuple(found and {**found, "dtype": None} for found in _keywords(*args, **kwargs))


_checkpoint._get_autocast_kwargs = _without_dtype
