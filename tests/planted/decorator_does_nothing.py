"""``@torch.autocast(...)`` returns the function as it is."""

from __future__ import annotations

from typing import Any

import torch

_region: Any = torch.amp.autocast_mode.autocast
_region.__call__ = lambda self, function: function
