"""``custom_bwd`` does not enter forward's region."""

from __future__ import annotations

from typing import Any

import torch

_amp: Any = torch.amp
_amp.custom_bwd = lambda backward=None, *, device_type: backward or (lambda function: function)
