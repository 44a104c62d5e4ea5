"""``torch.cuda.amp.custom_fwd`` and ``custom_bwd`` return the function as it is."""

from __future__ import annotations

from typing import Any

import torch

_amp: Any = torch.cuda.amp
_amp.custom_fwd = lambda fwd=None, *, cast_inputs=None: fwd or (lambda function: function)
_amp.custom_bwd = lambda bwd: bwd
