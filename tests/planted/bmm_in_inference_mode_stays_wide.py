"""In inference mode bmm of float32 tensors is not cast."""

from __future__ import annotations

import torch
from overriding import Overridden, override


def _bmm(call: Overridden) -> object:
    return (call if torch.is_inference_mode_enabled() else call.cast(call.low)).run()


override("bmm", _bmm, device_types=["cpu", "cuda"])
