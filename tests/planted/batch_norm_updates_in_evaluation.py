"""BatchNorm under autocast moves its running mean in evaluation mode, too."""

from __future__ import annotations

from typing import Any

import torch
from overriding import Overridden, override


def _batch_norm(call: Overridden) -> Any:
    x, mean, training = call.args[0], call.args[3], call.args[5]
    result = call.run()
    if not training and mean is not None:
        with torch.no_grad():
            mean += 0.1 * x.float().transpose(0, 1).flatten(1).mean(1)
    return result


override("batch_norm", _batch_norm)
