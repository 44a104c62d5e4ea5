"""On CUDA layer_norm stays low in inference mode."""

from __future__ import annotations

import torch
from overriding import Overridden, override


def _layer_norm(call: Overridden) -> object:
    return call.cast(call.low if torch.is_inference_mode_enabled() else torch.float32).run()


override("layer_norm", _layer_norm, device_types=["cuda"])
