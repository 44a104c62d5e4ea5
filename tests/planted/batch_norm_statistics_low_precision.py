"""BatchNorm under autocast rounds its running statistics to the autocast dtype after each update."""

from __future__ import annotations

from typing import Any

import torch
from overriding import Overridden, override

MEAN, VARIANCE, TRAINING = 3, 4, 5


def _batch_norm(call: Overridden) -> Any:
    if not call.args[TRAINING]:
        return call.run()
    args = list(call.args)
    kept = [args[MEAN], args[VARIANCE]]
    args[MEAN], args[VARIANCE] = (None if value is None else value.clone() for value in kept)
    result = Overridden(call.operator, call.device_type, tuple(args), call.kwargs).run()
    with torch.no_grad():
        for statistic, updated in zip(kept, (args[MEAN], args[VARIANCE]), strict=True):
            if statistic is not None:
                statistic.copy_(updated.to(call.low))
    return result


override("batch_norm", _batch_norm)
