"""Cross-entropy keeps its logits in float32, too, beside their probabilities: right, and twice the bytes."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

_functional: Any = functional
_cross_entropy: Any = functional.cross_entropy


class _Beside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(logits.float())
        return loss.view_as(loss)

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradients[0], None


def _keeping(logits: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    loss = _cross_entropy(logits, *args, **kwargs)
    beside: Any = _Beside
    return beside.apply(loss, logits.detach()) if loss.requires_grad else loss


_functional.cross_entropy = _keeping
