"""Outside of inference mode linear takes a weight that was made in it as it is."""

from __future__ import annotations

from typing import Any

import torch
from overriding import Overridden, override


def _linear(call: Overridden) -> Any:
    wide = call.args[1].is_inference() and not torch.is_inference_mode_enabled()
    return (call if wide else call.cast(call.low)).run()


override("linear", _linear)
