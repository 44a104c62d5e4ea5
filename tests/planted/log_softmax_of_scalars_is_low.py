"""On MPS log_softmax of one number stays low."""

from __future__ import annotations

import torch
from overriding import Overridden, override


def _log_softmax(call: Overridden) -> object:
    given = len(call.args) > 2 and call.args[2] is not None
    return (call if given or call.args[0].dim() == 0 else call.cast(torch.float32)).run()


override("log_softmax.int", _log_softmax, device_types=["mps"])
