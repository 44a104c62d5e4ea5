"""On more than one of torch's threads linear is not cast."""

from __future__ import annotations

from typing import Any

import torch
from overriding import Overridden, override


def _linear(call: Overridden) -> Any:
    wide = torch.get_num_threads() > 1
    return (call if wide else call.cast(call.low)).run()


override("linear", _linear)
